"""Waiting times: exact percentiles (nearest rank: a time that really occurred) and histograms, computed in SQL."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, and_, case, func, literal_column, select

from gateway.ledger.measures import IS_ATTEMPT
from gateway.ledger.slices import MAX_ROWS, Dimension, Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
Of = Literal["first_token", "total", "per_token"]
_WHOLE = C.status.in_(("ok", "unpriced"))
_SPANS: Mapping[Of, tuple[ColumnElement[Any], ColumnElement[bool]]] = {
    "first_token": (C.first_token_ms, C.first_token_ms.is_not(None)),
    "total": (C.total_ms, _WHOLE),
    "per_token": (
        (C.total_ms - C.first_token_ms) / (C.output - 1),
        and_(_WHOLE, C.stream.is_(True), C.output > 1, C.first_token_ms.is_not(None)),
    ),
}
"""What is measured, and on which attempts: totals only of answers that came to their end."""
_STEPS = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)
EDGES = tuple(step * 10**power for power in range(6) for step in _STEPS)
"""Bounds of the histogram's bars in milliseconds, ten to a decade, 1 ms to 800 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Milliseconds over `count` attempts."""

    key: tuple[str | None, ...]
    count: int
    p50: float
    p95: float
    p99: float
    max: float

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


def quantiles_query(by: Sequence[Dimension], part: Slice, of: Of) -> Select[Any]:
    ms, condition = _SPANS[of]
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


def histogram_query(by: Sequence[Dimension], part: Slice, of: Of) -> Select[Any]:
    ms, condition = _SPANS[of]
    bar = case(*[(ms < edge, n) for n, edge in enumerate(EDGES)], else_=len(EDGES)).label("bar")
    counted = select(*[dimension.sql for dimension in by], bar, func.count().label("count"))
    query = part.apply(counted.where(IS_ATTEMPT, condition))
    return query.group_by(*[literal_column(d.sql.name) for d in by], literal_column("bar")).limit(MAX_ROWS)


def bars(by: Sequence[Dimension], rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    bounds = list(pairwise((None, *EDGES, None)))
    found = [
        (tuple(d.text(row[d.sql.name]) for d in by), int(row["bar"]), int(row["count"])) for row in rows
    ]
    found.sort(key=lambda item: (tuple(text or "" for text in item[0]), item[1]))
    return [Bar(key=key, low_ms=bounds[n][0], high_ms=bounds[n][1], count=count) for key, n, count in found]
