"""Every figure that a report shows, defined once, as SQL over entries and as a value with its derived figures.

Money and tokens are sums over all entries, corrections included: a correction holds the difference and repeats the labels and
the time of what it corrects, so it lands in the same group. Calls are counted by id, so retries and hedges are attempts of one
call; a call with attempts in two groups counts in both and once in the total. The price of an attempt is unknown where it has
none and no correction gave it one; a sum that has such attempts and nothing paid for is None, not 0.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, and_, case, distinct, exists, func

from gateway.core.money import usd
from gateway.core.usage import WRITE_TTLS
from gateway.ledger.tables import LEDGER

C = LEDGER.c
_later = LEDGER.alias("later")

IS_ATTEMPT = C.kind == "attempt"
_WRITTEN = sum((func.coalesce(C[f"write_{ttl}"], 0) for ttl in WRITE_TTLS[1:]), func.coalesce(C[f"write_{WRITE_TTLS[0]}"], 0))
_PREDICTED = and_(IS_ATTEMPT, C.predicted_read_tokens > 0)
_UNPRICED = and_(
    IS_ATTEMPT, C.cost_nanos.is_(None), ~exists().where(and_(_later.c.corrects == C.id, _later.c.cost_nanos.is_not(None)))
)


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _sum(value: Any, condition: ColumnElement[bool] | None = None) -> ColumnElement[int]:
    return func.coalesce(func.sum(value if condition is None else case((condition, value), else_=0)), 0)


MEASURES: Mapping[str, ColumnElement[Any]] = {
    "calls": func.count(distinct(case((IS_ATTEMPT, C.call_id)))),
    "attempts": _count(IS_ATTEMPT),
    "failed": _count(and_(IS_ATTEMPT, C.status.not_in(("ok", "unpriced")))),
    "retries": _count(and_(IS_ATTEMPT, C.attempt > 1)),
    "unpriced": _count(_UNPRICED),
    "estimated": _count(and_(IS_ATTEMPT, C.tokens_from.in_(("estimate", "mixed")))),
    "uncached": _sum(C.uncached),
    "cache_read": _sum(C.cache_read),
    "cache_write": _sum(_WRITTEN),
    "output": _sum(C.output),
    "reasoning": _sum(C.reasoning),
    "cost_nanos": func.sum(C.cost_nanos),
    "uncached_cost_nanos": func.sum(func.coalesce(C.uncached_cost_nanos, C.cost_nanos)),
    "expected": _count(_PREDICTED),
    "missed": _count(and_(_PREDICTED, func.coalesce(C.cache_read, 0) == 0)),
    "predicted_read": _sum(C.predicted_read_tokens, _PREDICTED),
    "expected_read": _sum(func.coalesce(C.cache_read, 0), _PREDICTED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group. Token counts of `cache_write` are over all lifetimes; `reasoning` is part of `output`."""

    key: tuple[str | None, ...] = ()
    calls: int = 0
    attempts: int = 0
    failed: int = 0
    """Attempts that did not end well."""
    retries: int = 0
    """Attempts after the first of their call."""
    unpriced: int = 0
    estimated: int = 0
    """Attempts whose tokens are our estimate, wholly or in part."""
    uncached: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    cost_nanos: int | None = None
    uncached_cost_nanos: int | None = None
    """What it would have cost with every prompt token computed afresh."""
    expected: int = 0
    """Attempts whose prefix was predicted to be cached."""
    missed: int = 0
    """Those of them that read nothing from the cache."""
    predicted_read: int = 0
    expected_read: int = 0
    """Tokens read by the attempts that were predicted to read `predicted_read`."""

    @classmethod
    def of(cls, key: tuple[str | None, ...], figures: Mapping[str, Any]) -> Row:
        """From a database row; PostgreSQL's sums are Decimals. Refusals that cost nothing do not make a price known."""
        whole: dict[str, Any] = {name: None if figures[name] is None else int(figures[name]) for name in MEASURES}
        if whole["unpriced"] and not whole["cost_nanos"]:
            whole |= {"cost_nanos": None, "uncached_cost_nanos": None}
        return cls(key=key, **whole)

    @property
    def input_total(self) -> int:
        return self.uncached + self.cache_read + self.cache_write

    @property
    def cache_share(self) -> float | None:
        """Share of prompt tokens that came from a cache; None without prompt tokens."""
        return self.cache_read / self.input_total if self.input_total else None

    @property
    def saved_nanos(self) -> int | None:
        """Saved by caching; negative where writing cost more than reading saved."""
        if self.cost_nanos is None or self.uncached_cost_nanos is None:
            return None
        return self.uncached_cost_nanos - self.cost_nanos

    def json(self, by: tuple[str, ...] = ()) -> dict[str, Any]:
        """As `tollway report --json` and `/tollway/usage` print it."""
        figures = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "key" and not f.name.endswith("_nanos")}
        return {
            **dict(zip(by, self.key, strict=True)),
            **figures,
            "input_total": self.input_total,
            "cache_share": self.cache_share,
            "cost_usd": usd(self.cost_nanos),
            "cost_if_uncached_usd": usd(self.uncached_cost_nanos),
            "saved_usd": usd(self.saved_nanos),
        }


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows in order of their key where that begins with a time, else the dearest first; `total` counts each call once."""

    by: tuple[str, ...]
    rows: tuple[Row, ...]
    total: Row

    def json(self) -> dict[str, Any]:
        return {"by": list(self.by), "rows": [row.json(self.by) for row in self.rows], "total": self.total.json()}
