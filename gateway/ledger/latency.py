"""Waiting times: percentiles by nearest rank and histograms, computed in SQL.

Over up to `EXACT_UP_TO` entries percentiles are exact, each a time that really occurred. Over more they come from bins of the
roll-up, 12 % wide: the rank decides the bin and the place in it, `exact` is false, and a figure is off by less than a bin.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from sqlalchemy import JSON, ColumnElement, Select, SmallInteger, and_, case, func, literal_column, select

from gateway.ledger.measures import IS_ATTEMPT
from gateway.ledger.slices import MAX_ROWS, Dimension, Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
Of = Literal["first_token", "total", "per_token"]
_WHOLE = C.status.in_(("ok", "unpriced"))
SPANS: Mapping[Of, tuple[ColumnElement[Any], ColumnElement[bool]]] = {
    "first_token": (C.first_token_ms, C.first_token_ms.is_not(None)),
    "total": (C.total_ms, _WHOLE),
    "per_token": (
        (C.total_ms - C.first_token_ms) / (C.output - 1),
        and_(_WHOLE, C.stream.is_(True), C.output > 1, C.first_token_ms.is_not(None)),
    ),
}
"""What is measured, and on which attempts: totals only of answers that came to their end."""
EXACT_UP_TO = 20_000
_STEPS = (1, 1.12, 1.25, 1.4, 1.6, 1.8, 2, 2.25, 2.5, 2.8, 3.2, 3.6, 4, 4.5, 5, 5.6, 6.3, 7.1, 8, 9)
FINE = tuple(round(step * 10**power, 6) for power in range(6) for step in _STEPS)
"""Bounds of the roll-up's bins in milliseconds, twenty to a decade, 1 ms to 900 s. Bin n lies below `FINE[n]`."""
EDGES = FINE[::2]
"""Bounds of the histogram's bars: two bins each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Milliseconds over `count` attempts."""

    key: tuple[str | None, ...]
    count: int
    p50: float
    p95: float
    p99: float
    max: float
    exact: bool = True

    def json(self, by: Sequence[str]) -> dict[str, Any]:
        figures = asdict(self)
        del figures["key"]
        return {**dict(zip(by, self.key, strict=True)), **figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Attempts that took `low_ms` or more and less than `high_ms`; None: no bound."""

    key: tuple[str | None, ...]
    low_ms: float | None
    high_ms: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Attempts of a team's class whose first token came after `deadline_ms`; within a bin the count is by share."""

    team: str
    klass: str
    deadline_ms: float
    count: int
    late: int


@dataclass(frozen=True, slots=True)
class Waits:
    """Percentiles by each of several splits, and bars by one."""

    by: Mapping[tuple[str, ...], list[Quantiles]]
    bars: list[Bar]


def quantiles_query(by: Sequence[Dimension], part: Slice, of: Of) -> Select[Any]:
    ms, condition = SPANS[of]
    keys = [dimension.sql for dimension in by]
    ranked = part.apply(
        select(
            *keys,
            ms.label("ms"),
            func.row_number().over(partition_by=keys or None, order_by=ms).label("rank"),
            func.count().over(partition_by=keys or None).label("n"),
        ).where(IS_ATTEMPT, condition)
    ).subquery()
    outer = [ranked.c[key.name] for key in keys]
    r = ranked.c
    nearest = [
        func.max(case((and_(r.rank * 100 >= r.n * p, (r.rank - 1) * 100 < r.n * p), r.ms))).label(f"p{p}") for p in (50, 95, 99)
    ]
    return select(*outer, r.n.label("count"), *nearest, func.max(r.ms).label("max")).group_by(*outer, r.n).limit(MAX_ROWS)


def quantiles(by: Sequence[Dimension], rows: Sequence[Mapping[str, Any]]) -> list[Quantiles]:
    found = [
        Quantiles(
            key=tuple(dimension.text(row[dimension.sql.name]) for dimension in by),
            count=int(row["count"]), p50=row["p50"], p95=row["p95"], p99=row["p99"], max=row["max"],
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda q: tuple(text or "" for text in q.key))


def BIN(ms: ColumnElement[Any]) -> ColumnElement[int]:
    """SQL: the number of the bin, found by halving."""
    return _halve(ms, 0, len(FINE))


def _halve(ms: ColumnElement[Any], low: int, high: int) -> ColumnElement[Any]:
    if low == high:
        return literal_column(str(low), SmallInteger)
    middle = (low + high) // 2
    return case((ms < literal_column(str(FINE[middle])), _halve(ms, low, middle)), else_=_halve(ms, middle + 1, high))


def histogram_query(by: Sequence[Dimension], part: Slice, of: Of) -> Select[Any]:
    """Attempts by bin."""
    ms, condition = SPANS[of]
    bin_ = BIN(ms).label("bin")
    counted = select(*[dimension.sql for dimension in by], bin_, func.count().label("n"))
    query = part.apply(counted.where(IS_ATTEMPT, condition))
    return query.group_by(*[literal_column(d.sql.name) for d in by], literal_column("bin"))


def packed(by: Sequence[Dimension], counted: Select[Any], dialect: str) -> Select[Any]:
    """Attempts by bin, one row a key: a row a bin costs more to fetch than to count."""
    each = counted.subquery("counted")
    keys = [each.c[dimension.sql.name] for dimension in by]
    pack = func.json_group_object if dialect == "sqlite" else func.json_object_agg
    return select(*keys, pack(each.c.bin, each.c.n, type_=JSON).label("bins")).group_by(*keys).limit(MAX_ROWS)


Bins = Mapping[tuple[str | None, ...], Mapping[int, int]]
"""Key -> attempts by bin."""


def bins(by: Sequence[Dimension], rows: Sequence[Mapping[str, Any]]) -> Bins:
    """Of rows of `packed`."""
    return {
        tuple(d.text(row[d.sql.name]) for d in by): {int(number): int(n) for number, n in row["bins"].items()}
        for row in rows if row["bins"]
    }  # fmt: skip


def merged(found: Bins, of: Sequence[str], by: Sequence[str]) -> Bins:
    """Bins by the dimensions `of` -> bins by some of them."""
    places = [of.index(name) for name in by]
    sums: dict[tuple[str | None, ...], dict[int, int]] = {}
    for key, counts in found.items():
        of_key = sums.setdefault(tuple(key[place] for place in places), {})
        for number, n in counts.items():
            of_key[number] = of_key.get(number, 0) + n
    return sums


def bars(found: Bins) -> list[Bar]:
    bounds = list(pairwise((None, *EDGES, None)))
    made: dict[tuple[tuple[str | None, ...], int], int] = {}
    for key, counts in found.items():
        for number, count in counts.items():
            bar = (number + 1) // 2
            made[key, bar] = made.get((key, bar), 0) + count
    ordered = sorted(made.items(), key=lambda item: (tuple(text or "" for text in item[0][0]), item[0][1]))
    return [Bar(key=key, low_ms=bounds[n][0], high_ms=bounds[n][1], count=count) for (key, n), count in ordered]


def quantiles_of(found: Bins) -> list[Quantiles]:
    """Percentiles as the bins tell them."""
    made = []
    for key, counts in found.items():
        n, last = sum(counts.values()), max(counts)
        p50, p95, p99 = (_at_rank(counts, -(-n * p // 100)) for p in (50, 95, 99))
        made.append(Quantiles(key=key, count=n, p50=p50, p95=p95, p99=p99, max=_edges(last)[1], exact=False))
    return sorted(made, key=lambda q: tuple(text or "" for text in q.key))


def late(found: Bins, deadlines: Mapping[tuple[str, str], float]) -> list[Late]:
    """Of bins by team and class."""
    made = []
    for (team, klass), counts in sorted(found.items(), key=str):
        deadline_ms = deadlines.get((team or "", klass or ""))
        if deadline_ms is not None:
            over = sum(n * _share_over(number, deadline_ms) for number, n in counts.items())
            whole = sum(counts.values())
            made.append(Late(team=team or "", klass=klass or "", deadline_ms=deadline_ms, count=whole, late=round(over)))
    return made


def _share_over(number: int, ms: float) -> float:
    low, high = _edges(number)
    return min(max((high - ms) / (high - low), 0.0), 1.0)


def _at_rank(counts: Mapping[int, int], rank: int) -> float:
    for number in sorted(counts):
        if rank <= counts[number]:
            low, high = _edges(number)
            return round(low + (high - low) * (rank - 0.5) / counts[number], 3)
        rank -= counts[number]
    raise AssertionError("the rank lies within the counts")


def _edges(number: int) -> tuple[float, float]:
    return FINE[number - 1] if number else 0.0, FINE[number] if number < len(FINE) else FINE[-1] * 1.12
