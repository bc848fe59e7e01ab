"""Days and hours are those of the stated zone, on the days of clock changes too."""
from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gateway.ledger import days
from gateway.ledger.days import HOUR_US, UnknownZone, changes, day_range, day_start, window_start


def at(text: str) -> int:
    return days.micros(datetime.fromisoformat(text).astimezone(UTC))


@pytest.mark.parametrize(("tz", "day", "start", "hours"), [
    pytest.param("UTC", date(2026, 3, 10), "2026-03-10T00:00:00+00:00", 24, id="utc"),
    pytest.param("Asia/Kolkata", date(2026, 3, 10), "2026-03-09T18:30:00+00:00", 24, id="half an hour"),
    pytest.param("America/New_York", date(2026, 3, 8), "2026-03-08T05:00:00+00:00", 23, id="spring"),
    pytest.param("America/New_York", date(2026, 11, 1), "2026-11-01T04:00:00+00:00", 25, id="autumn"),
    pytest.param("Australia/Lord_Howe", date(2026, 4, 5), "2026-04-04T13:00:00+00:00", 24.5, id="a change of half an hour"),
    pytest.param("Africa/Cairo", date(2026, 4, 24), "2026-04-23T22:00:00+00:00", 23, id="no midnight"),
    pytest.param("America/Havana", date(2026, 11, 1), "2026-11-01T04:00:00+00:00", 25, id="midnight twice"),
])  # fmt: skip
def test_a_day_begins_and_ends_where_the_zone_says(tz: str, day: date, start: str, hours: float) -> None:
    first, end = day_range(day, day, tz)
    assert first == at(start)
    assert end - first == int(hours * HOUR_US)


@pytest.mark.parametrize("tz", ["America/New_York", "Europe/Berlin", "Asia/Kolkata", "Africa/Casablanca", "Australia/Lord_Howe"])
def test_clock_changes_are_found_to_the_microsecond(tz: str) -> None:
    """The spans give the same local time as the zone itself, right before and right after each change."""
    since, until = at("2024-01-01T00:00:00+00:00"), at("2028-01-01T00:00:00+00:00")
    spans = changes(tz, since, until)
    for instant, offset in spans[1:]:
        before, after = (
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(ZoneInfo(tz)).utcoffset() for us in (instant - 1, instant)
        )
        assert before != after == timedelta(microseconds=offset)
    assert len(spans) == {"Asia/Kolkata": 1}.get(tz, 9)


@pytest.mark.parametrize(("window", "start"), [
    ("total", "1970-01-01T00:00:00+00:00"),
    ("month", "2026-11-01T00:00:00-04:00"),
    ("week", "2026-10-26T00:00:00-04:00"),
    ("day", "2026-11-01T00:00:00-04:00"),
    ("hour", "2026-11-01T01:00:00-05:00"),
])  # fmt: skip
def test_budget_windows_are_calendar_exact(window: days.Window, start: str) -> None:
    """Sunday 1 November 2026, half past the second one o'clock in New York."""
    assert window_start(window, "America/New_York", at("2026-11-01T06:30:00+00:00")) == at(start)


def test_a_half_hour_zone_has_hours_that_begin_at_half_past_utc() -> None:
    assert window_start("hour", "Asia/Kolkata", at("2026-03-10T10:45:00+00:00")) == at("2026-03-10T10:30:00+00:00")


@pytest.mark.parametrize("name", ["Berlin", "", "../etc/passwd", "Europe"])
def test_a_zone_that_does_not_exist_is_an_error_that_helps(name: str) -> None:
    with pytest.raises(UnknownZone, match="use an IANA name"):
        day_start(date(2026, 1, 1), name)
