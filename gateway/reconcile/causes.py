"""Names the cause of every gap. Rules run in order, each takes what it explains, what is left at the end is `unknown`.

1. A key that is no backend's: it bypassed the gateway.
2. The same tokens at another rate: rounding; a region's surcharge or another tier's rates where the bill does not split by
   them and all classes of the place agree; else the price row.
3. Tokens missing in one cell that turn up in another: another lifetime of the cache write (TTL split), another tier or batch,
   another region. Whole calls move, so input and output must move together.
4. A place where calls were cut: its estimates may be off as far as estimates are.
5. Calls near midnight: billed on the day before or after.
6. Input and output that the ledger has never heard of: they bypassed the gateway.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from itertools import permutations
from typing import Literal, NamedTuple

from gateway.reconcile.gaps import Cell, Join, Where
from gateway.reconcile.lines import INPUT
from gateway.reconcile.rates import Place, Rates

Cause = Literal["bypassed", "tier", "ttl_split", "cut_stream", "batch", "region", "rounding", "price_row", "day", "unknown"]
CAUSES: dict[Cause, str] = {
    "bypassed": "bypassed the gateway", "tier": "another service tier", "ttl_split": "another lifetime of cache writes",
    "cut_stream": "cut streams, estimated", "batch": "billed as batch", "region": "billed for a region", "rounding": "rounding",
    "price_row": "another price row", "day": "billed on the day beside", "unknown": "unknown",
}  # fmt: skip
_MICRO = 1_000
"""Nano-dollars: what a provider may round one call to."""
_SMALL = Fraction(2, 1_000)
"""As a share, what rounding each call can come to."""
_NEAR = Fraction(1, 1_000)
_MORE_INPUT, _MORE_OUTPUT = 0.3, 4
"""How far a bill may be above an estimate: a tokenizer errs by less, an answer may have gone on after the hang-up."""
_MORE_EACH = 2_000


class Why(NamedTuple):
    """What is said of a gap."""

    cause: Cause
    note: str = ""


class Spot(NamedTuple):
    """One class of tokens at one place of a day, key and model: where a gap can be."""

    where: Where
    place: Place
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One gap, or one part of one, under its cause. `nanos` is what the bill has more; None: nobody knows the rate."""

    cause: Cause
    where: Where
    place: Place
    kind: str
    tokens: int = 0
    nanos: int | None = 0
    note: str = ""


def named(grid: Join, rates: Rates, unit_nanos: int) -> list[Finding]:
    """All findings, in the order of the rules."""
    rules = _Rules(grid, rates, unit_nanos)
    found = [
        *rules.strangers(), *rules.implied(), *rules.rate_gaps(), *rules.moved_lifetimes(), *rules.moved_places(),
        *rules.cut_streams(), *rules.moved_days(), *rules.bypassed(), *rules.rest(),
    ]  # fmt: skip
    return [finding for finding in found if finding.tokens or finding.nanos]


@dataclass(frozen=True, slots=True)
class _Rules:
    grid: Join
    rates: Rates
    unit_nanos: int

    def strangers(self) -> Iterator[Finding]:
        for line in self.grid.strangers:
            where, place = Where(line.day, line.key or "", line.model), Place(line.tier, line.region)
            rate = self.rates.nanos(line.day, line.model, place, line.kind)
            worth = round(line.tokens * rate) if line.tokens is not None and rate is not None else None
            yield Finding(
                cause="bypassed", where=where, place=place, kind=line.kind, tokens=line.tokens or 0, note="a key of no backend",
                nanos=line.nanos if line.nanos is not None else worth,
            )  # fmt: skip

    # The same tokens at another rate.

    def implied(self) -> Iterator[Finding]:
        """Dollars without tokens that agree but for rounding: so do the tokens."""
        for where, place, kind, cell in self.grid.cells():
            left = cell.billed_nanos - cell.booked_nanos
            if cell.implied and abs(left) <= self._step(cell):
                cell.gap = cell.rate_nanos = 0
                yield Finding(cause="rounding", where=where, place=place, kind=kind, nanos=left)

    def rate_gaps(self) -> Iterator[Finding]:
        for where, block in self.grid.blocks.items():
            for place, row in block.items():
                off = {kind: cell for kind, cell in row.items() if cell.rate_nanos}
                small = {kind: cell for kind, cell in off.items() if abs(cell.rate_nanos) <= self._step(cell)}
                large = {kind: cell for kind, cell in off.items() if kind not in small}
                for kind, cell in small.items():
                    yield _priced(Why("rounding"), Spot(where, place, kind), cell)
                if large:
                    why = self._rate_cause(where, place, large)
                    for kind, cell in large.items():
                        yield _priced(why._replace(cause="unknown") if kind == "other" else why, Spot(where, place, kind), cell)

    def _step(self, cell: Cell) -> int:
        """How far rounding can go: half a step for each line, and little for each call."""
        calls = min(cell.calls * _MICRO, round(cell.booked_nanos * _SMALL))
        return (cell.lines * self.unit_nanos) // 2 + calls + cell.calls + 1

    def _rate_cause(self, where: Where, place: Place, cells: dict[str, Cell]) -> Why:
        rates = {kind: cell.rates for kind, cell in cells.items() if kind != "other"}
        ratios = [billed / booked for billed, booked in rates.values() if billed and booked]
        if not ratios or len(ratios) < len(rates):
            return Why("price_row", "booked without a price")
        if "region" not in self.grid.splits:
            for factor, region in self.rates.factors().items():
                if any(all(_near(ratio, wanted) for ratio in ratios) for wanted in (factor, 1 / factor)):
                    return Why("region", f"x{float(ratios[0]):.4g}, as {region}")
        if "tier" not in self.grid.splits:
            for tier in self.rates.tiers(where.model):
                there = Place(tier, place.region)
                theirs = {kind: self.rates.nanos(where.day, where.model, there, kind) for kind in rates}
                if all(_near(billed, theirs[kind]) for kind, (billed, _) in rates.items()):
                    return Why(_tier_cause(tier), f"at the rates of tier {tier}")
        return Why("price_row", f"x{float(min(ratios)):.4g} to x{float(max(ratios)):.4g}")

    # Tokens that turn up elsewhere.

    def moved_lifetimes(self) -> Iterator[Finding]:
        for where, block in self.grid.blocks.items():
            for place, row in block.items():
                written = [kind for kind in row if kind.startswith("write_")]
                for fewer, more in permutations(written, 2):
                    if moved := _movable(row[fewer], row[more]):
                        yield _move(Why("ttl_split", f"from {fewer}"), Spot(where, place, more), moved, row[fewer], row[more])

    def moved_places(self) -> Iterator[Finding]:
        """First to places that this key and model never asked for: all that was billed there came from somewhere else, even if
        calls bypassed the gateway, at the same time, where it came from."""
        asked = {(where.key, where.model, place) for where, place, _, cell in self.grid.cells() if cell.booked}
        for where, block in self.grid.blocks.items():
            known = [place for place in block if (where.key, where.model, place) in asked and _deficit(block[place])]
            strange = [place for place in block if (where.key, where.model, place) not in asked]
            rounds = sorted(((source, target) for target in strange for source in known), key=_distance)
            for source, target in rounds:
                yield from self._moved(where, source, target)
            for target in strange if known else ():
                yield from self._moved(where, min(known, key=lambda source: _distance((source, target))), target, whole=True)
            for source, target in sorted(permutations(sorted(block, key=str), 2), key=_distance):
                yield from self._moved(where, source, target)

    def _moved(self, where: Where, source: Place, target: Place, *, whole: bool = False) -> Iterator[Finding]:
        block = self.grid.blocks[where]
        pairs = []
        for kind, cell in block[target].items():
            if whole and kind not in block[source]:
                block[source][kind] = Cell(gap_rate=self.rates.nanos(where.day, where.model, source, kind))
            if kind in block[source]:
                pairs.append((kind, block[source][kind], cell))
        why = Why(_place_cause(source, target), f"from {_name(source)}")
        yield from _together(why, where, target, pairs, whole=whole)

    def moved_days(self) -> Iterator[Finding]:
        for where, block in self.grid.blocks.items():
            for days in (1, -1):
                beside = where._replace(day=(date.fromisoformat(where.day) + timedelta(days=days)).isoformat())
                for place, row in self.grid.blocks.get(beside, {}).items():
                    pairs = [(kind, block[place][kind], row[kind]) for kind in row if kind in block.get(place, {})]
                    yield from _together(Why("day", f"from {where.day}"), beside, place, pairs)

    # Tokens of one side only.

    def cut_streams(self) -> Iterator[Finding]:
        for (where, place), (calls, into, out) in self.grid.estimates.items():
            row = self.grid.blocks[where].get(place, {})
            more_in = sum(cell.gap for kind, cell in row.items() if kind in INPUT)
            more_out = row["output"].gap if "output" in row else 0
            in_reach = -into <= more_in <= into * _MORE_INPUT + 16 * calls
            if in_reach and -out <= more_out <= out * _MORE_OUTPUT + _MORE_EACH * calls:
                for kind, cell in row.items():
                    yield _taken(Why("cut_stream", f"{calls} attempts were estimated"), Spot(where, place, kind), cell)

    def bypassed(self) -> Iterator[Finding]:
        for where, block in self.grid.blocks.items():
            for place, row in block.items():
                into = sum(cell.gap for kind, cell in row.items() if kind in INPUT)
                out = row["output"].gap if "output" in row else 0
                no_output = "output" not in row or not (row["output"].billed or row["output"].booked)
                if into > 0 and (out > 0 or no_output):
                    for kind, cell in row.items():
                        if cell.gap > 0:
                            yield _taken(Why("bypassed", "the ledger has no such calls"), Spot(where, place, kind), cell)

    def rest(self) -> Iterator[Finding]:
        for where, place, kind, cell in self.grid.cells():
            worth = abs(round(cell.gap * (cell.gap_rate or 0)))
            cause: Cause = "rounding" if cell.implied and worth <= self._step(cell) else "unknown"
            why = Why(cause, "billed, not booked" if cell.gap > 0 else "booked, not billed")
            yield _taken(why, Spot(where, place, kind), cell)


def _place_cause(source: Place, target: Place) -> Cause:
    if source.tier == target.tier:
        return "region"
    return "batch" if "batch" in (_tier_cause(source.tier), _tier_cause(target.tier)) else "tier"


def _tier_cause(tier: str | None) -> Cause:
    return "batch" if (tier or "").startswith("batch") else "tier"


def _together(
    why: Why, where: Where, place: Place, pairs: Sequence[tuple[str, Cell, Cell]], *, whole: bool = False
) -> Iterator[Finding]:
    """Moves of whole calls: with input goes output, if the model has any. `whole`: all that the target has too much."""
    moved = {kind: max(0, target.gap) if whole else _movable(source, target) for kind, source, target in pairs}
    talks = any(kind == "output" and (source.booked or target.billed) for kind, source, target in pairs)
    if any(moved.get(kind) for kind in INPUT) and (moved.get("output") or not talks):
        for kind, source, target in pairs:
            if moved[kind]:
                yield _move(why, Spot(where, place, kind), moved[kind], source, target)


def _distance(places: tuple[Place, Place]) -> int:
    """In how many dimensions two places differ."""
    return sum(a != b for a, b in zip(*places, strict=True))


def _deficit(row: dict[str, Cell]) -> int:
    """Tokens that a place lacks, below 0."""
    return sum(min(0, cell.gap) for kind, cell in row.items() if kind != "other")


def _movable(source: Cell, target: Cell) -> int:
    return min(-source.gap, target.gap) if source.gap < 0 < target.gap else 0


def _move(why: Why, spot: Spot, tokens: int, source: Cell, target: Cell) -> Finding:
    """So many tokens of the target's gap are the source's; `spot` is the target's."""
    known = source.gap_rate is not None and target.gap_rate is not None
    nanos = round(tokens * ((target.gap_rate or 0) - (source.gap_rate or 0))) if known else None
    source.gap += tokens
    target.gap -= tokens
    return _finding(why, spot, tokens, nanos)


def _taken(why: Why, spot: Spot, cell: Cell) -> Finding:
    tokens, cell.gap = cell.gap, 0
    nanos = None if cell.gap_rate is None else round(tokens * cell.gap_rate)
    return _finding(why, spot, tokens, nanos)


def _priced(why: Why, spot: Spot, cell: Cell) -> Finding:
    nanos, cell.rate_nanos = cell.rate_nanos, 0
    return _finding(why, spot, 0, nanos)


def _finding(why: Why, spot: Spot, tokens: int, nanos: int | None) -> Finding:
    return Finding(
        cause=why.cause, where=spot.where, place=spot.place, kind=spot.kind, tokens=tokens, nanos=nanos, note=why.note,
    )  # fmt: skip


def _near(a: Fraction | None, b: Fraction | None) -> bool:
    return a is not None and b is not None and abs(a - b) <= abs(b) * _NEAR


def _name(place: Place) -> str:
    return " ".join(part for part in place if part) or "default"


def sums(findings: Iterable[Finding]) -> dict[Cause, tuple[int, int, int, int]]:
    """Cause -> lines, tokens, nano-dollars, and lines whose dollars are not known; in the order of `CAUSES`."""
    found: dict[Cause, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for finding in findings:
        total = found[finding.cause]
        total[0] += 1
        total[1] += finding.tokens
        total[2] += finding.nanos or 0
        total[3] += finding.nanos is None
    return {cause: (a, b, c, d) for cause in CAUSES if cause in found for a, b, c, d in [found[cause]]}
