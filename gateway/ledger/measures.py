"""Every figure that a report shows, defined once, as SQL over entries and as a value with its derived figures.

Money and tokens are sums over all entries, corrections included: a correction holds the difference and repeats the labels and
the time of what it corrects, so it lands in the same group. Calls are counted by id, so retries and hedges are attempts of one
call; a call with attempts in two groups counts in both and once in the total. The price of an attempt is unknown where it has
none and no correction gave it one; a sum that has such attempts and nothing paid for is None, not 0.
"""
from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

from sqlalchemy import ColumnElement, String, and_, case, distinct, exists, func
from sqlalchemy import cast as sql_cast

from gateway.core.money import usd
from gateway.ledger.rollup_tables import MONEY, RATES, WRITES
from gateway.ledger.tables import LEDGER

C = LEDGER.c
_later = LEDGER.alias("later")

IS_ATTEMPT = C.kind == "attempt"
_PREDICTED = and_(IS_ATTEMPT, C.predicted_read_tokens > 0, C.tokens_from != "none")
"""One that was refused or broke off before its prompt was read has looked into no cache."""
UNPRICED = and_(
    IS_ATTEMPT, C.cost_nanos.is_(None), ~exists().where(and_(_later.c.corrects == C.id, _later.c.cost_nanos.is_not(None)))
)


def _flag(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return case((condition, 1), else_=0)


def _nanos(picos: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(picos, 0) // 1_000


def _total(parts: Iterable[ColumnElement[Any]]) -> ColumnElement[Any]:
    return reduce(operator.add, parts)


PER_ENTRY: Mapping[str, ColumnElement[Any]] = {
    "attempts": _flag(IS_ATTEMPT),
    "failed": _flag(and_(IS_ATTEMPT, C.status.not_in(("ok", "unpriced", "lost")))),
    "retries": _flag(and_(IS_ATTEMPT, C.attempt > 1)),
    "estimated": _flag(and_(IS_ATTEMPT, C.tokens_from.in_(("estimate", "mixed")))),
    "uncached": func.coalesce(C.uncached, 0),
    "cache_read": func.coalesce(C.cache_read, 0),
    **{name: func.coalesce(C[name], 0) for name in WRITES},
    "output": func.coalesce(C.output, 0),
    "reasoning": func.coalesce(C.reasoning, 0),
    "cost_nanos": C.cost_nanos,
    "uncached_cost_nanos": func.coalesce(C.uncached_cost_nanos, C.cost_nanos),
    "expected": _flag(_PREDICTED),
    "missed": _flag(and_(_PREDICTED, func.coalesce(C.cache_read, 0) == 0)),
    "predicted_read": case((_PREDICTED, C.predicted_read_tokens), else_=0),
    "expected_read": case((_PREDICTED, func.coalesce(C.cache_read, 0)), else_=0),
    "uncached_nanos": _nanos(C.uncached * RATES.c.input),
    "cache_read_nanos": _nanos(C.cache_read * RATES.c.cached),
    "cache_write_nanos": _nanos(_total(func.coalesce(C[name] * RATES.c[name], 0) for name in WRITES)),
    "output_nanos": _nanos(C.output * RATES.c.output),
}
"""What one entry adds to each sum; the rest of `MEASURES` looks at several entries of a call."""
SOURCE = LEDGER.outerjoin(RATES, and_(RATES.c.rows == sql_cast(C.price_rows, String), C.cost_nanos.is_not(None)))
"""What `PER_ENTRY` is selected from. An entry of unknown cost may name rows, for what is known of it: no sum has that."""
SUMMED = ("unpriced", *PER_ENTRY)


def sums_of(figures: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """SQL sums, by the names of `Row`: 0 over nothing, money NULL."""
    found = {name: func.sum(what) if name in MONEY else func.coalesce(func.sum(what), 0) for name, what in figures.items()}
    written = _total([found.pop(name) for name in WRITES])
    return {**found, "cache_write": written}


MEASURES: Mapping[str, ColumnElement[Any]] = sums_of(PER_ENTRY) | {
    "calls": func.count(distinct(case((IS_ATTEMPT, C.call_id)))),
    "unpriced": func.coalesce(func.sum(_flag(UNPRICED)), 0),
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
    uncached_nanos: int = 0
    """Cost of the uncached tokens by the price rows that the entries name; likewise the three below."""
    cache_read_nanos: int = 0
    cache_write_nanos: int = 0
    output_nanos: int = 0

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

    @property
    def cost_parts(self) -> dict[str, int]:
        """The cost by token class, adding up to it. `other`: fees, audio and images, corrections, cost without a price row."""
        parts = {
            "uncached": self.uncached_nanos, "cache_read": self.cache_read_nanos, "cache_write": self.cache_write_nanos,
            "output": self.output_nanos,
        }  # fmt: skip
        return {**parts, "other": (self.cost_nanos or 0) - sum(parts.values())}

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
            **{f"{name}_usd": usd(nanos) for name, nanos in self.cost_parts.items()},
        }


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows in order of their key where that begins with a time, else the dearest first; `total` counts each call once."""

    by: tuple[str, ...]
    rows: tuple[Row, ...]
    total: Row

    def json(self) -> dict[str, Any]:
        return {"by": list(self.by), "rows": [row.json(self.by) for row in self.rows], "total": self.total.json()}
