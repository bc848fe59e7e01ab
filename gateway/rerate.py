"""Re-rating: prices entries anew under a book and books each difference as a correction. Old entries stay as they are.

An attempt is priced as it stands with all its corrections, by the rows that hold at its own time, so a second run finds no
difference and books nothing. The id of a correction follows from what it corrects, how often that was corrected before, and
the new rows: two runs at once book the same entry, and the ledger takes an id once. What only the answer told (a region) is
read from the rows that the entry named; an entry without rows is priced where its backend is configured to be.
"""
from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.core.money import usd
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, Ledger
from gateway.ledger.calls import with_corrections
from gateway.ledger.reports import Reports, Slice
from gateway.metering.charge import Priced
from gateway.metering.prices import Offer, PriceBook

PAGE = 500
_MARK = "~r"
"""Stands between the id of an attempt and the rest of its correction's id."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has done so far."""

    looked: int = 0
    """Attempts that were priced anew."""
    changed: int = 0
    priced_now: int = 0
    """Those of `changed` whose cost was unknown before."""
    no_longer_priced: int = 0
    """Attempts whose known cost no row explains any more; they keep it."""
    unknown: int = 0
    """Attempts whose cost stays unknown."""
    before_nanos: int = 0
    after_nanos: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """What has no price -> how many attempts."""

    def json(self) -> dict[str, Any]:
        return {
            "looked": self.looked, "changed": self.changed, "priced_now": self.priced_now,
            "no_longer_priced": self.no_longer_priced, "unknown": self.unknown, "before_usd": usd(self.before_nanos),
            "after_usd": usd(self.after_nanos), "difference_usd": usd(self.after_nanos - self.before_nanos),
            "missing": dict(sorted(self.missing.items())),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerating:
    """One run over a part of the ledger."""

    reports: Reports
    ledger: Ledger
    book: PriceBook
    regions: Mapping[str, str | None]
    """Backend -> the region it is configured for."""
    batch_lanes: Container[tuple[str, str]] = frozenset()
    """(backend, lane) that are billed as batch."""
    dry_run: bool = False

    async def run(self, part: Slice) -> AsyncIterator[Tally]:
        """The tally after each page; the last one is the result."""
        tally, after = Tally(), (0, "")
        while True:
            page = await asyncio.to_thread(self.reports.entries, part, PAGE, after)
            made = await asyncio.to_thread(self._corrections, page, tally)
            if not self.dry_run:
                await asyncio.gather(*(self.ledger.append(entry) for entry in made))
            yield tally
            if len(page) < PAGE:
                return
            after = (page[-1].at_us, page[-1].id)

    def _corrections(self, page: Iterable[Entry], tally: Tally) -> list[Entry]:
        attempts = [entry for entry in page if entry.kind == "attempt"]
        earlier = self.reports.corrections([entry.id for entry in attempts])
        found = (self.corrected(entry, earlier.get(entry.id, []), tally) for entry in attempts)
        return [entry for entry in found if entry is not None]

    def corrected(self, attempt: Entry, earlier: list[Entry], tally: Tally) -> Entry | None:
        """The correction that this attempt needs; None: its cost stands."""
        now = with_corrections([attempt, *earlier])[0]
        if not now.tokens.known:
            tally.unknown += now.cost_nanos is None
            return None
        priced = self._price(now, next((entry for entry in reversed(earlier) if entry.tokens.known), attempt))
        tally.looked += 1
        before = now.cost_nanos or 0
        tally.before_nanos += before
        if priced.cost_nanos is None:
            tally.after_nanos += before
            tally.unknown += now.cost_nanos is None
            tally.no_longer_priced += now.cost_nanos is not None
            for name in priced.missing:
                tally.missing[name] = tally.missing.get(name, 0) + 1
            return None
        tally.after_nanos += priced.cost_nanos
        afresh = sum(_afresh(entry) for entry in (attempt, *earlier))
        if now.cost_nanos == priced.cost_nanos and afresh == priced.uncached_cost_nanos:
            return None
        tally.changed += 1
        tally.priced_now += now.cost_nanos is None
        return replace(
            attempt,
            id=_id(attempt.id, len(earlier), priced.rows),
            kind="correction",
            corrects=attempt.id,
            reason=f"re-rated: {', '.join(now.price_rows) or 'no price'} -> {', '.join(priced.rows)}",
            decision=(),
            receipts=(),
            first_token_ms=None,
            total_ms=0.0,
            tokens=TokenUsage(),
            tokens_from="none",
            predicted_read_tokens=None,
            cost_nanos=priced.cost_nanos - before,
            held_nanos=attempt.held_nanos if now.cost_nanos is None else None,
            uncached_cost_nanos=(priced.uncached_cost_nanos or 0) - afresh,
            price_rows=priced.rows,
        )

    def _price(self, now: Entry, told: Entry) -> Priced:
        """As the attempt was priced when it was booked; `told` is the entry that has the provider's word on it."""
        region = region_of(now.price_rows, self.regions.get(now.backend))
        model = told.served_model or now.upstream_model
        return self.book.price(Offer(now.provider, model, told.served_tier, region, self._batch(now)), now.tokens, now.at_us)

    def _batch(self, entry: Entry) -> bool:
        rows = entry.price_rows
        return any("#batch" in row for row in rows) if rows else (entry.backend, entry.lane) in self.batch_lanes


def _afresh(entry: Entry) -> int:
    """As the reports count it: what an entry would have cost uncached, its cost where that was not told."""
    return (entry.cost_nanos if entry.uncached_cost_nanos is None else entry.uncached_cost_nanos) or 0


def region_of(rows: Iterable[str], configured: str | None) -> str | None:
    """The place that an attempt was priced for, as its rows name it; of rows for any place, the one its backend has."""
    rows = tuple(rows)
    for row in rows:
        _, marked, rest = row.partition("#region:")
        if marked:
            return rest.partition("#")[0].partition(">")[0]
        _, marked, rest = row.partition("@region:")
        if marked:
            place = rest.rpartition("x")[0]
            return configured or place if place == "*" else place
    return None if rows else configured


def _id(corrects: str, nth: int, rows: Iterable[str]) -> str:
    """Sorts behind what it corrects, and behind earlier corrections of it."""
    digest = hashlib.sha256("\0".join(rows).encode()).hexdigest()[:12]
    return f"{corrects}{_MARK}{nth:03d}-{digest}"


def audit_detail(part: Slice, tally: Tally, started_s: float) -> dict[str, Any]:
    """What the audit trail keeps of a run."""
    since, until = part.since_us, part.until_us
    return {
        "since_us": since, "until_us": until, "where": dict(part.where), **tally.json(),
        "seconds": round(time.monotonic() - started_s, 3),
    }  # fmt: skip
