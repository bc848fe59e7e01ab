"""Which entries a report is about, and by what it splits them: words of an operator to SQL.

A slice's end is exclusive. A name that is no dimension is a `BadQuery`, whose text may be shown to whoever asked.
"""
from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, String, and_, case, func, or_
from sqlalchemy import cast as sql_cast

from gateway.core.usage import WRITE_TTLS
from gateway.ledger import days
from gateway.ledger.tables import LEDGER

C = LEDGER.c
_PLAIN = (
    "team", "project", "model", "served_model", "backend", "provider", "lane", "client", "run", "subgoal", "status", "dialect",
    "call_id",
)  # fmt: skip
COLUMNS: Mapping[str, str] = {name: name for name in _PLAIN} | {
    "key": "key_id", "class": "latency_class", "tier": "served_tier",
}
"""Dimension -> column, for those that are one."""
TIMES = ("day", "hour")
DIMENSIONS = (*COLUMNS, *TIMES, "miss", "prompt", "prices", "tag:NAME")
"""`prompt`: how long it was, in bands of tokens; `prices`: the price rows that the entry names, as JSON."""
PROMPT_BANDS = (1_000, 4_000, 16_000, 64_000, 256_000)
MAX_ROWS = 10_000
_TAG = re.compile(r"[\w.\-/ ]{1,64}")


class BadQuery(ValueError):
    """A report was asked for in words that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """`where`: dimension -> the value, or the values, that an entry must have; None stands for entries without one."""

    since_us: int = 0
    until_us: int = 4_102_444_800_000_000
    tz: str = "UTC"
    where: Mapping[str, str | Sequence[str | None] | None] = field(default_factory=dict)

    @property
    def clock_bounds(self) -> tuple[int, int]:
        """Clock changes are looked for from 2000 on, and up to 2040 where no end is given."""
        return max(self.since_us, 946_684_800_000_000), min(self.until_us, 2_208_988_800_000_000)

    def only(self, **where: str | None) -> Slice:
        """The same slice, narrowed."""
        return replace(self, where={**self.where, **where})

    def apply(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        return self.among(query).where(C.at_us >= self.since_us, C.at_us < self.until_us)

    def among(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        """Narrowed to `where`, at any time. Verdicts on subgoals are no use of anything and never counted."""
        query = query.where(C.kind != "verdict")
        for name, wanted in self.where.items():
            column = column_of(name)
            values = [wanted] if wanted is None or isinstance(wanted, str) else list(wanted)
            some = [value for value in values if value is not None]
            query = query.where(or_(column.in_(some), column.is_(None)) if None in values else column.in_(some))
        return query


@dataclass(frozen=True, slots=True)
class Dimension:
    name: str
    sql: ColumnElement[Any]
    tz: str

    def text(self, value: Any) -> str | None:
        """A value as it is shown."""
        if value is None:
            return None
        if self.name == "day":
            return days.day_name(int(value))
        return days.hour_name(int(value), self.tz) if self.name == "hour" else str(value)


def dimensions(by: Sequence[str], part: Slice) -> list[Dimension]:
    """Raises `BadQuery`, with the words that exist, for one that does not."""
    days.zone(part.tz)
    return [Dimension(name, _sql(name, part).label(f"d{n}"), part.tz) for n, name in enumerate(by)]


def _sql(name: str, part: Slice) -> ColumnElement[Any]:
    if name == "day":
        return days.day_number(C.at_us, part.tz, *part.clock_bounds)
    if name == "hour":
        return days.hour_start(C.at_us, part.tz, *part.clock_bounds)
    return column_of(name)


def band_name(n: int) -> str:
    low = 0 if n == 0 else PROMPT_BANDS[n - 1]
    return f"{n + 1}: {low:,} or more" if n == len(PROMPT_BANDS) else f"{n + 1}: {low:,} to {PROMPT_BANDS[n]:,}"


def _prompt_band() -> ColumnElement[str]:
    """How long the prompt was, in words that sort by length."""
    counts = [func.coalesce(C[name], 0) for name in ("uncached", "cache_read", *(f"write_{ttl}" for ttl in WRITE_TTLS))]
    total = reduce(operator.add, counts)
    return case(*[(total < edge, band_name(n)) for n, edge in enumerate(PROMPT_BANDS)], else_=band_name(len(PROMPT_BANDS)))


def begins(column: ColumnElement[str], text: str, dialect: str) -> ColumnElement[bool]:
    """SQL: whether it begins so; by its index, for PostgreSQL one of `text_pattern_ops`."""
    if dialect == "sqlite":
        return and_(column >= text, column < f"{text}\U0010ffff")
    return column.startswith(text, autoescape=True)


def column_of(name: str) -> ColumnElement[Any]:
    """SQL: an entry's value of a dimension that is no time. Raises `BadQuery`."""
    if name in COLUMNS:
        return cast(ColumnElement[Any], C[COLUMNS[name]])
    if name == "miss":
        return cast(ColumnElement[Any], C.miss["kind"].as_string())
    if name == "prices":
        return sql_cast(C.price_rows, String)
    if name == "prompt":
        return _prompt_band()
    kind, _, tag = name.partition(":")
    if kind == "tag" and _TAG.fullmatch(tag):
        return cast(ColumnElement[Any], C.tags[tag].as_string())
    raise BadQuery(f"{name!r} is nothing to group or filter by; use one of: {', '.join(DIMENSIONS)}")
