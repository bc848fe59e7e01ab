"""Calendar windows in a time zone: the day, week or month that an instant falls into, to the microsecond; and times of day.

A day begins at the first instant of its date on the wall clock of the zone, also where midnight is skipped or comes twice;
so a day has 23 or 25 hours where clocks change, and windows touch without a gap.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Kind = Literal["day", "week", "month", "total"]


@dataclass(frozen=True, slots=True)
class Window:
    """Microseconds since the epoch; the start is in it, the end is not; None: unbounded."""

    starts_us: int | None
    ends_us: int | None

    def holds(self, at_us: int) -> bool:
        return (self.starts_us is None or self.starts_us <= at_us) and (self.ends_us is None or at_us < self.ends_us)


def zone(name: str) -> tzinfo:
    """The zone of that IANA name. Raises ValueError."""
    if name == "UTC":
        return UTC              # needs no time zone database
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name!r}; use a name like Europe/Berlin") from None


def window(kind: Kind, timezone: str, at_us: int) -> Window:
    """The window of that kind around an instant."""
    if kind == "total":
        return Window(None, None)
    place = zone(timezone)
    today = datetime.fromtimestamp(at_us // 1_000_000, place).date()
    if kind == "day":
        first, after = today, today + timedelta(days=1)
    elif kind == "week":
        first = today - timedelta(days=today.weekday())
        after = first + timedelta(days=7)
    else:
        first = today.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    return Window(moment(first, place), moment(after, place))


def next_time(hour: int, minute: int, days: Collection[int], timezone: str, after_us: int) -> int:
    """The first instant after that one at which clocks of the zone show that time, on one of these days of the week, of which
    Monday is 0."""
    place = zone(timezone)
    today = datetime.fromtimestamp(after_us // 1_000_000, place).date()
    ahead = [today + timedelta(days=n) for n in range(-1, 9)]
    found = (moment(day, place, hour, minute) for day in ahead if day.weekday() in days)
    return next(at_us for at_us in found if at_us > after_us)


def moment(day: date, place: tzinfo, hour: int = 0, minute: int = 0) -> int:
    """First instant of a date at that time, midnight if nothing is said. `fold=0` picks the earlier of two; a time that is
    skipped is taken by the clocks of before, so a skipped midnight is the moment of the skip."""
    return int(datetime(day.year, day.month, day.day, hour, minute, tzinfo=place).timestamp()) * 1_000_000
