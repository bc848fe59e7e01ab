"""Calendar days and hours of a time zone, for instants kept as microseconds.

A zone's distance from UTC is constant between two clock changes, and a window of a report spans few of them. So SQL gets one
small CASE, `at_us < change ? offset_before : offset_after`, adds it, and divides by a day: every row lands in its local day,
days of 23 and 25 hours and zones of half and quarter hours included, at the cost of one addition. An hour is kept as the
instant it begins at, so the two hours that are called 01:00 in autumn stay two.
"""
from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import BigInteger, ColumnElement, case, literal

DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Window = Literal["total", "month", "week", "day", "hour"]


class UnknownZone(ValueError):
    """Not a name of the IANA time zone database."""


def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownZone(f"{name!r} is no time zone; use an IANA name such as UTC, Europe/Berlin or Asia/Kolkata") from error


def instant(at_us: int, tz: str = "UTC") -> datetime:
    return (_EPOCH + timedelta(microseconds=at_us)).astimezone(zone(tz))


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def day_start(day: date, tz: str) -> int:
    """The first instant of a local day, also where its midnight does not exist or comes twice."""
    return micros(datetime(day.year, day.month, day.day, tzinfo=zone(tz)).astimezone(UTC))


def day_range(first: date, last: date, tz: str) -> tuple[int, int]:
    """Both days included, as a half-open range of microseconds."""
    return day_start(first, tz), day_start(last + timedelta(days=1), tz)


def window_start(window: Window, tz: str, now_us: int) -> int:
    """When the calendar window that holds `now_us` began; a week begins on Monday."""
    local = instant(now_us, tz)
    today = local.date()
    match window:
        case "total":
            return 0
        case "month":
            return month_range(tz, now_us)[0]
        case "week":
            return day_start(today - timedelta(days=today.weekday()), tz)
        case "day":
            return day_start(today, tz)
        case "hour":
            return now_us - (now_us + _offset(zone(tz), now_us)) % HOUR_US


def month_range(tz: str, at_us: int) -> tuple[int, int]:
    """Beginning and end of the calendar month that holds an instant."""
    first = instant(at_us, tz).date().replace(day=1)
    return day_start(first, tz), day_start((first + timedelta(days=32)).replace(day=1), tz)


def window_end(window: Window, tz: str, now_us: int) -> int | None:
    """When it ends; None for `total`."""
    today = instant(now_us, tz).date()
    match window:
        case "total":
            return None
        case "month":
            return month_range(tz, now_us)[1]
        case "week":
            return day_start(today + timedelta(days=7 - today.weekday()), tz)
        case "day":
            return day_start(today + timedelta(days=1), tz)
        case "hour":
            return window_start(window, tz, now_us) + HOUR_US


@lru_cache(maxsize=256)
def changes(tz: str, since_us: int, until_us: int) -> tuple[tuple[int, int], ...]:
    """`(instant, offset from it on)` for the window, the first at its beginning."""
    return tuple(_changes(zone(tz), since_us, until_us))


def _changes(tz: ZoneInfo, since_us: int, until_us: int) -> Iterator[tuple[int, int]]:
    at, offset = since_us, _offset(tz, since_us)
    yield at, offset
    while at < until_us:
        after = min(at + DAY_US, until_us)
        if (new := _offset(tz, after)) != offset:
            low, high = at, after
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(tz, middle) == offset else (low, middle)
            yield high, new
            offset = new
        at = after


def _offset(tz: ZoneInfo, at_us: int) -> int:
    offset = (_EPOCH + timedelta(microseconds=at_us)).astimezone(tz).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


def _offset_sql(at_us: ColumnElement[int], tz: str, since_us: int, until_us: int) -> ColumnElement[int]:
    spans = changes(tz, since_us, until_us)
    big = [literal(offset, BigInteger) for _, offset in spans]
    if len(spans) == 1:
        return big[0]
    return case(*[(at_us < until, offset) for (until, _), offset in zip(spans[1:], big, strict=False)], else_=big[-1])


def day_number(at_us: ColumnElement[int], tz: str, since_us: int, until_us: int) -> ColumnElement[int]:
    """SQL: the local day as a count from 1970-01-01."""
    return (at_us + _offset_sql(at_us, tz, since_us, until_us)) // literal(DAY_US, BigInteger)


def hour_start(at_us: ColumnElement[int], tz: str, since_us: int, until_us: int) -> ColumnElement[int]:
    """SQL: the instant at which the row's local hour began."""
    return at_us - (at_us + _offset_sql(at_us, tz, since_us, until_us)) % literal(HOUR_US, BigInteger)


def day_name(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).date().isoformat()


def hour_name(at_us: int, tz: str) -> str:
    return instant(at_us, tz).isoformat(timespec="minutes")
