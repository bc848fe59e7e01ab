"""Which entries a report is about, and by what it splits them: words of an operator to SQL.

A slice's end is exclusive. A name that is no dimension is a `BadQuery`, whose text may be shown to whoever asked.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, or_

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
DIMENSIONS = (*COLUMNS, *TIMES, "miss", "tag:NAME")
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

    def only(self, **where: str | None) -> Slice:
        """The same slice, narrowed."""
        return replace(self, where={**self.where, **where})

    def apply(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        query = query.where(C.at_us >= self.since_us, C.at_us < self.until_us)
        for name, wanted in self.where.items():
            column = _column(name)
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
        return days.day_number(C.at_us, part.tz, *_bounds(part))
    if name == "hour":
        return days.hour_start(C.at_us, part.tz, *_bounds(part))
    return _column(name)


def _bounds(part: Slice) -> tuple[int, int]:
    """Clock changes are looked for from 2000 on, and up to 2040 where no end is given."""
    return max(part.since_us, 946_684_800_000_000), min(part.until_us, 2_208_988_800_000_000)


def _column(name: str) -> ColumnElement[Any]:
    if name in COLUMNS:
        return cast(ColumnElement[Any], C[COLUMNS[name]])
    if name == "miss":
        return cast(ColumnElement[Any], C.miss["kind"].as_string())
    kind, _, tag = name.partition(":")
    if kind == "tag" and _TAG.fullmatch(tag):
        return cast(ColumnElement[Any], C.tags[tag].as_string())
    raise BadQuery(f"{name!r} is nothing to group or filter by; use one of: {', '.join(DIMENSIONS)}")
