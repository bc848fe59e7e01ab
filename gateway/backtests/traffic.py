"""What is replayed: trace files or a part of the ledger, and the lanes it meets."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import islice
from pathlib import Path

from gateway import settings as settings_
from gateway.backtests import history
from gateway.ledger import Entry, days, replay
from gateway.ledger.reports import Reports, connect
from gateway.ledger.slices import MAX_ROWS, Slice
from gateway.metering import prices
from router_policies.menus import menu
from router_policies.simulate import Reality, Recorded
from router_policies.traces import Mix, merged, read

_SAMPLE_ENTRIES = 50_000
"""Entries from which lanes' speeds are learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Small, so that another process can be told and reads by itself."""

    traces: tuple[Path, ...]
    """Trace files; none: the ledger of `config`."""
    config: Path | None
    since: str | None
    until: str | None
    """Days of the ledger, UTC, both included."""
    team: str
    model: str
    """Of a trace file's calls that do not say."""
    shares: tuple[tuple[str, float], ...]
    """Classes that a trace's calls ask for, dealt out by conversation."""
    most: int | None

    def calls(self) -> Iterator[Recorded]:
        """In order of time. Raises BadTrace or LedgerUnavailable."""
        if self.traces:
            mix = Mix(dict(self.shares))
            found = merged([read(path, team=self.team, model=self.model, mix=mix) for path in self.traces])
        else:
            found = replay.calls(self._entries())
        return islice(found, self.most)

    def count(self) -> int | None:
        """Calls at most, for a progress bar; None: not known."""
        if not self.traces:
            return self.most
        lines = sum(_lines(path) for path in self.traces)
        return lines if self.most is None else min(lines, self.most)

    def lanes(self) -> list[Reality]:
        """Those of the settings, as fast as the ledger shows them; without settings an example menu."""
        if self.config is None:
            return menu([self.model])
        settings = settings_.load(self.config, secrets=False)
        seen = () if self.traces else islice(self._entries(), _SAMPLE_ENTRIES)
        return history.lanes(settings, history.rates_now(prices.load(settings.prices)), seen)

    def _entries(self) -> Iterator[Entry]:
        assert self.config is not None
        reports = connect(settings_.load(self.config, secrets=False).database_url)
        try:
            yield from pages(reports, part_of(self.since, self.until))
        finally:
            reports.close()


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def part_of(since: str | None, until: str | None) -> Slice:
    """Days of the ledger, UTC, the last one included."""
    part = Slice()
    if since is not None:
        part = replace(part, since_us=days.day_start(date.fromisoformat(since), "UTC"))
    if until is not None:
        part = replace(part, until_us=days.day_start(date.fromisoformat(until) + timedelta(days=1), "UTC"))
    return part


def pages(reports: Reports, part: Slice) -> Iterator[Entry]:
    """All entries in order of time, a page in memory."""
    after = (0, "")
    while page := reports.entries(part, MAX_ROWS, after):
        yield from page
        after = (page[-1].at_us, page[-1].id)
