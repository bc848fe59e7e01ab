"""Both sides in one grid: for each day, key and model a block, in it for each tier, region and class a cell.

A dimension that the bill does not split by is not split on our side either. A cell's gap has two parts that add up to it
exactly: tokens that only one side has, at that side's rate, and the difference in rate on the tokens that both have.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from gateway.ledger.lines import LedgerLine
from gateway.metering.prices import plain_model, tier_name
from gateway.reconcile.lines import Line
from gateway.reconcile.rates import Place, Rates, region_of

ANY = "*"


class Where(NamedTuple):
    """A block: what a gap can hardly move out of."""

    day: str
    key: str
    model: str


@dataclass(slots=True)
class Cell:
    billed: int = 0
    billed_nanos: int = 0
    booked: int = 0
    booked_nanos: int = 0
    lines: int = 0
    """Lines of the bill."""
    calls: int = 0
    estimated: int = 0
    """Booked tokens that are our estimate."""
    gap: int = 0
    """Tokens billed and not booked (or the other way round, below 0) that no cause has taken yet."""
    gap_rate: Fraction | None = None
    """Nano-dollars for one of them; None: not known."""
    rate_nanos: int = 0
    """The difference in rate, on the tokens that both sides have."""
    implied: bool = False
    """The bill gave dollars only; the tokens follow from our rate."""
    valued: bool = False
    """The bill gave dollars; else its tokens are valued at our rate."""

    @property
    def rates(self) -> tuple[Fraction | None, Fraction | None]:
        """Billed and booked nano-dollars per token."""
        billed = Fraction(self.billed_nanos, self.billed) if self.billed else None
        return billed, Fraction(self.booked_nanos, self.booked) if self.booked else None


Block = dict[Place, dict[str, Cell]]


@dataclass(slots=True)
class Join:
    blocks: dict[Where, Block] = field(default_factory=dict)
    strangers: list[Line] = field(default_factory=list)
    """Lines of keys that are no backend's."""
    splits: frozenset[str] = frozenset()
    """Dimensions that the bill splits by: key, tier, region."""
    has_money: bool = False
    estimates: dict[tuple[Where, Place], tuple[int, int, int]] = field(default_factory=dict)
    """Attempts that were estimated: how many, input tokens, output tokens."""

    def cells(self) -> Iterator[tuple[Where, Place, str, Cell]]:
        for where, block in self.blocks.items():
            for place, row in block.items():
                for kind, cell in row.items():
                    yield where, place, kind, cell

    def cell(self, where: Where, place: Place, kind: str) -> Cell:
        return self.blocks.setdefault(where, {}).setdefault(place, {}).setdefault(kind, Cell())


def join(billed: Sequence[Line], booked: Iterable[LedgerLine], rates: Rates, keys: Mapping[str, str]) -> Join:
    booked = list(booked)
    splits = {name for name in ("tier", "region") if any(getattr(line, name) is not None for line in billed)}
    backends = {line.backend for line in booked}
    if not keys and backends & {line.key for line in billed}:
        keys = {name: name for name in backends}    # the bill calls keys as we call backends
    if keys:
        splits.add("key")
    grid = Join(splits=frozenset(splits), has_money=any(line.nanos is not None for line in billed))
    for line in booked:
        _book(grid, line, rates)
    for bill in billed:
        if keys and bill.key not in keys:
            grid.strangers.append(bill)
        else:
            _bill(grid, bill, keys.get(bill.key or "", ANY))
    for where, place, kind, cell in grid.cells():
        _weigh(cell, rates.nanos(where.day, where.model, place, kind))
    return grid


def _book(grid: Join, line: LedgerLine, rates: Rates) -> None:
    batch = line.lane == "batch" or any("#batch" in row for row in line.rows)
    place = Place(
        tier_name("", line.tier, batch) if "tier" in grid.splits else None,
        region_of(line.rows) if "region" in grid.splits else None,
    )
    where = Where(line.day, line.backend if "key" in grid.splits else ANY, plain_model(line.model))
    costs = rates.by_class(line)
    if not grid.has_money:
        costs.pop("other", None)    # fees are nothing that a bill of tokens could show
    for kind in {**line.tokens, **costs}:
        tokens = line.tokens.get(kind, 0)
        if tokens or costs.get(kind):
            cell = grid.cell(where, place, kind)
            cell.booked += tokens
            cell.booked_nanos += costs.get(kind, 0)
            cell.calls += line.attempts
            cell.estimated += tokens if line.estimated else 0
    if line.estimated:
        n, into, out = grid.estimates.get((where, place), (0, 0, 0))
        output = line.tokens["output"]
        grid.estimates[where, place] = (n + line.attempts, into + sum(line.tokens.values()) - output, out + output)


def _bill(grid: Join, line: Line, key: str) -> None:
    place = Place(
        (line.tier or "default") if "tier" in grid.splits else None, (line.region or "") if "region" in grid.splits else None
    )
    cell = grid.cell(Where(line.day, key, plain_model(line.model)), place, line.kind)
    cell.lines += 1
    cell.billed_nanos += line.nanos or 0
    cell.valued = cell.valued or line.nanos is not None
    if line.tokens is None:
        cell.implied = True
    else:
        cell.billed += line.tokens


def _weigh(cell: Cell, rate: Fraction | None) -> None:
    """Fills in what the bill leaves out, and parts the gap."""
    ours = Fraction(cell.booked_nanos, cell.booked) if cell.booked else rate
    if cell.implied and not cell.billed and ours:
        cell.billed = round(cell.billed_nanos / ours)
    if cell.billed and not cell.valued:
        cell.billed_nanos = round(cell.billed * (ours or 0))
    cell.gap = cell.billed - cell.booked
    billed, booked = cell.rates
    cell.gap_rate = (billed if cell.valued else ours) if cell.gap > 0 else booked
    total = cell.billed_nanos - cell.booked_nanos
    cell.rate_nanos = total - round(cell.gap * (cell.gap_rate or 0))
