"""Where the latest attempts of a slice are: the hours to look into, so that few among very many entries are found at once.

The roll-up knows the hours that hold any. They are taken from the newest on until they hold as many as are wanted, or more
attempts in all than are looked through; then the answer says how far back it goes.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, true

from gateway.ledger import rolled
from gateway.ledger.days import HOUR_US
from gateway.ledger.reader import Moment, Reader
from gateway.ledger.rollup_tables import seq
from gateway.ledger.slices import Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
MOST_LOOKED, MOST_HOURS = 200_000, 100
"""Attempts that are looked through, matching or not, and hours that they are in."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Where to look. `since_us`: how far back that is, None: to the slice's beginning."""

    where: ColumnElement[bool]
    since_us: int | None = None


def spans(reader: Reader, part: Slice, most: int, most_looked: int | None = None) -> Spans:
    """So many attempts of the slice are in them, where there are so many."""
    hourly = replace(part, tz="UTC")
    everything = replace(hourly, where={})
    found, whole = rolled.plan(("hour",), hourly), rolled.plan(("hour",), everything)
    if found is None or whole is None or "run" in part.where or found.first >= found.last:
        return Spans(true())
    new: list[ColumnElement[bool]] = []

    def asked(now: Moment) -> list[Select[Any]]:
        new.append(seq(now.dialect) > now.rolled_to)
        return [rolled.hours_query(hourly, found), rolled.hours_query(everything, whole)]

    matching, attempts = ([(row["hour"], int(row["n"])) for row in rows] for rows in reader.read_at(asked))
    hours, cut = _newest(matching, dict(attempts), most, most_looked or MOST_LOOKED)
    since_us = hours[-1] * HOUR_US if cut else None
    ends = [(found.last * HOUR_US, part.until_us), *([] if cut else [(part.since_us, found.first * HOUR_US)])]
    pieces = [and_(C.at_us >= first, C.at_us < last) for first, last in [*_joined(hours), *ends] if first < last]
    return Spans(and_(or_(*new, *pieces), C.at_us >= (since_us or part.since_us)), since_us)


def _newest(
    matching: Sequence[tuple[int, int]], attempts: Mapping[int, int], most: int, most_looked: int
) -> tuple[list[int], bool]:
    """Hours, the newest first; and whether older ones were left out though there are not as many as wanted."""
    hours, matches, looked = list[int](), 0, 0
    for hour, n in matching:
        if matches >= most:
            break
        looked += attempts.get(hour, 0)
        if hours and (looked > most_looked or len(hours) == MOST_HOURS):
            return hours, True
        hours.append(hour)
        matches += n
    return hours, False


def _joined(hours: Iterable[int]) -> list[tuple[int, int]]:
    """As ranges of microseconds, neighbours in one."""
    ranges: list[tuple[int, int]] = []
    for hour in hours:
        if ranges and ranges[-1][0] == (hour + 1) * HOUR_US:
            ranges[-1] = (hour * HOUR_US, ranges[-1][1])
        else:
            ranges.append((hour * HOUR_US, (hour + 1) * HOUR_US))
    return ranges
