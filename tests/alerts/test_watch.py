"""Nothing is told twice, and nothing is lost."""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.alerts import Alert
from gateway.alerts.rules import Bounds
from gateway.alerts.senders import Channel
from gateway.alerts.watch import AlertWatch
from gateway.core.secret import Secret
from gateway.ledger.days import HOUR_US
from gateway.ledger.reports import Reports
from gateway.ledger.sql import Store
from tests.ledger.generate import entry
from tests.upstream import Upstream, whole

NOW = 1_764_072_000_000_000     # 2025-11-25 12:00 UTC
Make = Callable[[list[Any]], Reports]


def spent(*dollars: float, team: str = "search", ago_us: int = HOUR_US // 2) -> list[Any]:
    return [
        entry(id=f"{team}-{ago_us}-{n}", call_id=f"c-{team}-{ago_us}-{n}", team=team, at_us=NOW - ago_us, cost_nanos=int(usd * 1e9))
        for n, usd in enumerate(dollars)
    ]


async def test_an_alert_is_told_once_and_again_if_nobody_took_it(ledger: Make, tmp_path: Path) -> None:
    """Two gateways on one database, a channel that is down at first."""
    report = await asyncio.to_thread(ledger, spent(9))
    store = Store(f"sqlite:///{tmp_path}/ledger.db")
    found = [Alert(id="budget/one", kind="budget", team="search", title="t", text="x", at_us=NOW)]
    with contextlib.closing(Upstream()) as server:
        site = server.site("hook")
        channels = [
            Channel(name="hook", shape="webhook", url=Secret(site.url)),
            Channel(name="others", shape="webhook", url=Secret("http://127.0.0.1:9"), teams=frozenset({"support"})),
        ]
        both = [AlertWatch(reports=report, store=store, channels=channels, bounds=Bounds(), limits=lambda: []) for _ in range(2)]
        for watch in both:
            watch.look = lambda: found      # type: ignore[method-assign]
        site.says(whole({}, status=503))
        await both[0].check()
        assert await asyncio.to_thread(report.alerts) == []
        site.says(whole({}))
        for watch in (*both, *both):
            await watch.check()
        assert len(site.requests) == 2
    told = await asyncio.to_thread(report.alerts)
    assert [alert["id"] for alert in told] == ["budget/one"]
    assert await asyncio.to_thread(report.alerts, "support") == []
    await store.close()
