"""What a gateway says of itself, for a ledger of `generate.py`: lanes, budgets of its teams, deadlines, policies."""
from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.ledger.sql import Store
from gateway.status_table import StatusTable

TEAMS, ZONE = ("search", "support", "research"), "Europe/Berlin"


def status() -> dict[str, Any]:
    """As `gateway.watched` writes it."""
    lanes = (("embedded/fast", 2, 0.08), ("embedded/standard", 5, 0.31), ("openai/standard", 11, 0.52), ("anthropic/standard", 0, 0.6))
    budgets = (("cap", "month", "team", 400), ("a day", "day", "team", 25), ("each project", "month", "project", 300))
    return {
        "lanes": [
            {"lane": lane, "healthy": busy > 0, "why_not": None if busy else "5 of the last 5 attempts failed", "in_flight": busy,
             "max_in_flight": 64, "queue_s": wait_s, "samples": 900}
            for lane, busy, wait_s in lanes
        ],
        "journal_lag": 3, "database": "ok", "draining": False, "policies": {team: f"sha256:{team}" for team in TEAMS},
        "policies_loaded_s": time.time() - 7_200, "policy_problems": [],
        "deadlines": [{"team": team, "class": "interactive", "first_token_ms": 800} for team in TEAMS],
        "budgets": [
            {"team": team, "name": name, "limit_nanos": usd * 10**9, "window": window, "tz": ZONE, "scope": scope,
             "held_nanos": 12_000_000}
            for team in TEAMS for name, window, scope, usd in budgets
        ],
    }  # fmt: skip


def say(url: str) -> None:
    """Writes it, for tests that are plain functions."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _say(url)).result()


async def _say(url: str) -> None:
    store = Store(url)
    await StatusTable(store).say("gateway-1/4711", status())
    await store.close()
