"""Looks for alerts from time to time and sends each once, whichever gateway finds it first.

An alert is written down before it is sent; if no channel takes it, it is forgotten again and found anew next time.
"""
from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite

from gateway.alerts import Alert, rules, senders
from gateway.alerts.rules import Bounds
from gateway.alerts.senders import Channel
from gateway.core import clock
from gateway.ledger.budget_use import Limit
from gateway.ledger.reports import LedgerUnavailable, Reports
from gateway.ledger.sql import Store
from gateway.ledger.watch_tables import ALERTS

_log = logging.getLogger("tollway.alerts")
_A = ALERTS.c


@dataclass(kw_only=True)
class AlertWatch:
    """`limits`: the budgets in force, asked for each time."""

    reports: Reports
    store: Store
    channels: Sequence[Channel]
    bounds: Bounds
    limits: Callable[[], Sequence[Limit]]

    async def check(self) -> None:
        """A job of the upkeep."""
        if not self.channels:
            return
        try:
            alerts = await asyncio.to_thread(self.look)
        except LedgerUnavailable:
            return
        for alert in alerts:
            if await self._first(alert):
                said = await send_all(self.channels, alert)
                if said and all(said.values()):
                    await self._forget(alert)

    def look(self) -> list[Alert]:
        """What would be sent now, if it was not already."""
        return rules.found(self.reports, self.limits(), self.bounds, clock.now_us())

    async def _first(self, alert: Alert) -> bool:
        """Writes it down; whether nobody had."""
        async with self.store.begin() as connection:
            row = {"id": alert.id, "at_us": alert.at_us, "kind": alert.kind, "team": alert.team, "detail": asdict(alert)}
            insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
            written = await connection.execute(insert(ALERTS).values(row).on_conflict_do_nothing())
            return bool(written.rowcount)

    async def _forget(self, alert: Alert) -> None:
        async with self.store.begin() as connection:
            await connection.execute(delete(ALERTS).where(_A.id == alert.id))


async def send_all(channels: Sequence[Channel], alert: Alert) -> Mapping[str, str | None]:
    """By each channel that wants it: what went wrong, None if nothing did."""
    wanted = [channel for channel in channels if channel.wants(alert)]
    said = await asyncio.gather(*(senders.send(channel, alert) for channel in wanted))
    for channel, problem in zip(wanted, said, strict=True):
        if problem:
            _log.warning("alert %s was not taken by %s: %s", alert.id, channel.name, problem)
    return {channel.name: problem for channel, problem in zip(wanted, said, strict=True)}
