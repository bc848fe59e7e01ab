"""Ledger entries as a busy company would leave them: same seed, same entries.

Three teams, two lanes of an own engine and two providers, a day's rhythm, sessions whose prefix is cached from the second turn
on, retries, hang-ups, a model without a price, tags, runs.
"""
from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gateway.core.levers import arms
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.ledger.journal import Journal, Place
from gateway.ledger.rollup_tables import KEPT
from gateway.ledger.schema import upgrade
from gateway.ledger.sql import Store, insert_entries
from gateway.ledger.tables import LEDGER

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class _Served:
    model: str
    backend: str
    provider: str
    lane: str
    rates: tuple[int, int, int, int]
    """Uncached, cache read, cache write, output: micro-dollars per million tokens."""
    ttft_ms: float
    per_token_ms: float
    tier: str | None = None


_FAST = _Served("smollm2", "embedded", "embedded", "fast", (200_000, 20_000, 0, 800_000), 90, 9)
_STANDARD = _Served("smollm2", "embedded", "embedded", "standard", (80_000, 8_000, 0, 320_000), 240, 21)
_GPT = _Served("gpt-5.5", "openai", "openai", "standard", (1_250_000, 125_000, 0, 10_000_000), 520, 14, "default")
_GPT_FAST = _Served("gpt-5.5", "openai", "openai", "fast", (2_500_000, 250_000, 0, 20_000_000), 280, 7, "priority")
_GPT_FLEX = _Served("gpt-5.5", "openai", "openai", "flex", (625_000, 62_500, 0, 5_000_000), 2_900, 32, "flex")
_CLAUDE = _Served("claude-sonnet-5", "anthropic", "anthropic", "standard", (3_000_000, 300_000, 3_750_000, 15_000_000), 610, 12)
_NEW = _Served("brand-new-model", "openai", "openai", "standard", (0, 0, 0, 0), 700, 20)

_TEAMS: dict[str, tuple[str, tuple[tuple[float, str, _Served], ...]]] = {
    "search": ("ranking", ((0.55, "interactive", _FAST), (0.25, "interactive", _GPT_FAST), (0.2, "standard", _GPT))),
    "support": ("helpdesk", ((0.5, "interactive", _CLAUDE), (0.3, "standard", _CLAUDE), (0.2, "standard", _STANDARD))),
    "research": ("agents", ((0.45, "batch", _GPT_FLEX), (0.4, "batch", _STANDARD), (0.13, "agent", _CLAUDE), (0.02, "agent", _NEW))),
}
_CLIENTS = ("openai/python", "anthropic/python", "claude-cli", "curl")


def backlog(journal: Journal) -> list[str]:
    """Ids of a journal's own settled entries that the database does not have, oldest first, as its files tell."""
    found, _ = journal.settled_between(Place(1, 0), journal.place, 1_000_000)
    return list(dict.fromkeys(e.id for e in found if e.id in journal._unprojected))


def entry(**over: object) -> Entry:
    """One entry with defaults, for tests that care about a few fields."""
    fields: dict[str, object] = {
        "id": "a-1", "call_id": "c-1", "attempt": 1, "at_us": 1_764_000_000_000_000, "team": "search", "key_id": "k-1",
        "dialect": "openai_chat", "stream": True, "model": "gpt-5.5", "upstream_model": "gpt-5.5", "backend": "openai",
        "provider": "openai", "lane": "standard", "latency_class": "interactive", "policy_version": "sha256:0", "reason": "cheapest",
        "status": "ok", "http_status": 200, "first_token_ms": 400.0, "total_ms": 1_900.0, "tokens_from": "provider",
        "tokens": TokenUsage(uncached=120, cache_read=4_096, output=220, reasoning=64),
        "cost_nanos": 12_345_678, "uncached_cost_nanos": 20_000_000, "price_rows": ("openai/gpt-5.5@2026-04-01",),
    } | over  # fmt: skip
    return Entry(**fields)  # type: ignore[arg-type]


def entries(count: int, until_us: int, days: float = 14.0, seed: int = 7) -> Iterator[Entry]:
    """`count` entries in the `days` before `until_us`, oldest first."""
    rng = random.Random(seed)
    start = until_us - int(days * DAY_US)
    times = sorted(_moment(rng, start, days) for _ in range(count))
    sessions: dict[str, list[int]] = {}
    made = [attempt for number, at_us in enumerate(times) for attempt in _call(rng, number, at_us, sessions)]
    yield from made[-count:]


def _moment(rng: random.Random, start_us: int, days: float) -> int:
    """Work happens by day, Europe's and America's, and there is more of it each week."""
    while True:
        at_us = start_us + int(rng.random() ** 0.8 * days * DAY_US)
        if rng.random() < 0.25 + 0.75 * max(0.0, math.sin((at_us / DAY_US % 1.0 - 0.25) * 2 * math.pi)):
            return at_us


def _call(rng: random.Random, number: int, at_us: int, sessions: dict[str, list[int]]) -> Iterator[Entry]:
    team = rng.choices(list(_TEAMS), (5, 3, 4))[0]
    project, ways = _TEAMS[team]
    _, latency_class, served = rng.choices(ways, [share for share, _, _ in ways])[0]
    session = f"{team}-{number // 40}-{rng.randrange(4)}"
    history = sessions.setdefault(session, [])
    prefix = sum(history)
    fresh = rng.randrange(40, 900) + (1_800 if not history else 0)
    history.append(fresh)
    hit = bool(prefix) and rng.random() > 0.12
    common = {
        "call_id": f"call-{number:07d}", "at_us": at_us, "team": team, "project": project, "key_id": f"key-{team}-{number % 3}",
        "client": rng.choice(_CLIENTS), "run": session if latency_class in ("agent", "batch") else None,
        "subgoal": rng.choice(("plan", "edit", "check")) if latency_class == "agent" else None,
        "tags": {"feature": rng.choice(("answer", "summary", "rerank"))} if team != "research" else {},
        "dialect": "anthropic_messages" if served.provider == "anthropic" else "openai_chat", "stream": rng.random() < 0.7,
        "model": served.model, "upstream_model": served.model, "served_model": served.model, "backend": served.backend,
        "provider": served.provider, "lane": served.lane, "served_tier": served.tier, "latency_class": latency_class,
        "policy_version": f"sha256:{team}", "reason": f"{served.lane}: least cost plus waiting for {latency_class}",
        "decision": _lanes(rng, served),
        "receipts": (arms(session.encode(), {"normalize": number // 40 % 8 == 0}),) if team == "search" else (),
    }  # fmt: skip
    attempt = 1
    if rng.random() < 0.03:
        yield entry(
            **common, id=f"att-{number:07d}-1", attempt=1, status="failed", http_status=503, error="overloaded", tokens=TokenUsage(),
            tokens_from="none", first_token_ms=None, total_ms=rng.uniform(20, 90), cost_nanos=0, uncached_cost_nanos=0, price_rows=(),
        )  # fmt: skip
        attempt = 2
    yield _answer(rng, served, common, f"att-{number:07d}-{attempt}", attempt, prefix, fresh, hit)


def _answer(
    rng: random.Random, served: _Served, common: dict[str, object], id: str, attempt: int, prefix: int, fresh: int, hit: bool
) -> Entry:
    output = max(1, int(rng.lognormvariate(4.9, 0.8)))
    reasoning = output // 3 if served.provider == "openai" else None
    read = prefix if hit else 0
    written = fresh + prefix - read if served.provider == "anthropic" else 0
    uncached = 0 if written else fresh + prefix - read
    ttft = served.ttft_ms * rng.lognormvariate(0, 0.45) + (prefix + fresh - read) * 0.06
    gone = rng.random() < 0.01
    priced = served is not _NEW
    r_uncached, r_read, r_write, r_output = served.rates
    picos = uncached * r_uncached + read * r_read + written * r_write + output * r_output
    afresh = (uncached + read + written) * r_uncached + output * r_output
    return entry(
        **common, id=id, attempt=attempt, status="client_gone" if gone else "ok" if priced else "unpriced",
        tokens=TokenUsage(
            uncached=uncached, cache_read=read, cache_write={"5m": written} if written else {}, output=output, reasoning=reasoning
        ),
        tokens_from="estimate" if gone else "provider", first_token_ms=round(ttft, 2),
        total_ms=round(ttft + output * served.per_token_ms * rng.uniform(0.8, 1.3), 2),
        predicted_read_tokens=prefix or None,
        miss=None if hit or not prefix else _miss(rng, prefix, served.rates),
        cost_nanos=-(-picos // 1_000) if priced else None, uncached_cost_nanos=-(-afresh // 1_000) if priced else None,
        price_rows=(f"{served.provider}/{served.model}@2026-04-01",) if priced else (),
    )  # fmt: skip


def _lanes(rng: random.Random, won: _Served) -> tuple[dict[str, object], ...]:
    """As the pipeline writes them: the lane that was taken, one that lost, one that was refused."""
    others = [lane for lane in ("fast", "standard", "flex") if lane != won.lane]
    cost, wait, value = rng.lognormvariate(-6.5, 0.6), rng.uniform(0.1, 2), 0.002
    ranked = ((won.lane, cost, wait), (others[0], cost * rng.uniform(1.2, 3), wait * rng.uniform(0.3, 1.2)))
    return (
        *[
            {"lane": f"{won.backend}/{lane}", "expected_cost_usd": round(usd, 9), "expected_wait_s": round(s, 4),
             "sum_usd": round(usd + value * s, 9), "miss_chance": 0.0, "note": None}
            for lane, usd, s in ranked
        ],
        {"lane": f"{won.backend}/{others[1]}", "refused": "not allowed for this class"},
    )  # fmt: skip


_KINDS = {"timestamp": "/system/0", "expiry": "", "edit": "/tools/3", "id": "/messages/0"}


def _miss(rng: random.Random, prefix: int, rates: tuple[int, int, int, int]) -> dict[str, object]:
    """As `missed.py` writes it."""
    kind = rng.choice(list(_KINDS))
    start = rng.randrange(400)
    return {
        "kind": kind, "path": _KINDS[kind], "start": start, "end": start + 24, "would_hit": prefix, "lost": prefix,
        "lost_nanos": prefix * (rates[0] - rates[1]) // 1_000, "earlier_us": 1_764_000_000_000_000,
    }  # fmt: skip


def write(place: Path | str, some: Iterable[Entry]) -> str:
    """A ledger of just these entries, in a SQLite file or at a URL; gives its URL. For tests that are plain functions."""
    url = place if isinstance(place, str) else f"sqlite:///{place}"
    with ThreadPoolExecutor(1) as thread:       # a loop of its own, whatever loop the test runs in
        thread.submit(asyncio.run, _write(url, list(some))).result()
    return url


async def _write(url: str, some: list[Entry]) -> None:
    store = Store(url)
    await upgrade(store.url)
    async with store.begin() as connection:
        for table in (LEDGER, *KEPT):
            await connection.execute(table.delete())
        for start in range(0, len(some), 1_000):
            await insert_entries(connection, some[start : start + 1_000])
    await store.close()
