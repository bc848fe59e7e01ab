"""Ranges of time in a zone, the period before, and the axis they make."""
from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from dashboard.data import Slice, micros
from dashboard.view import RANGES, buckets, narrowed, view

NOW = micros(datetime(2026, 11, 2, 14, 30, tzinfo=UTC))      # the Monday after New York's clocks went back


def span(range_: str, tz: str = "America/New_York", dates: tuple[date, date] | None = None) -> list[str]:
    chosen = view(range_, tz, {}, NOW, dates)
    parts = [chosen.part] + ([chosen.before] if chosen.before else [])
    ends = [us for part in parts for us in (part.since_us, part.until_us)]
    return [f"{datetime.fromtimestamp(us / 1e6, UTC):%m-%d %H:%M}" for us in ends]


@pytest.mark.parametrize(("range_", "expected"), [
    ("1h", ["11-02 13:30", "11-02 14:30", "11-02 12:30", "11-02 13:30"]),
    ("24h", ["11-01 14:30", "11-02 14:30", "10-31 14:30", "11-01 14:30"]),
    ("today", ["11-02 05:00", "11-02 14:30", "11-01 04:00", "11-01 13:30"]),
    ("yesterday", ["11-01 04:00", "11-02 05:00", "10-31 04:00", "11-01 05:00"]),
    ("7d", ["10-27 04:00", "11-02 14:30", "10-20 04:00", "10-26 14:30"]),
    ("month", ["11-01 04:00", "11-02 14:30", "10-30 04:00", "10-31 14:30"]),
])  # fmt: skip
def test_ranges_are_calendar_exact(range_: str, expected: list[str]) -> None:
    """A day begins at its midnight, one of 25 hours included; the period before has the same length."""
    assert span(range_) == expected


def test_dates_are_both_included() -> None:
    assert span("custom", "UTC", (date(2026, 10, 1), date(2026, 10, 2)))[:2] == ["10-01 00:00", "10-03 00:00"]


def test_all_time_has_nothing_before() -> None:
    assert view("all", "UTC", {}, NOW).before is None


@pytest.mark.parametrize("range_", RANGES)
def test_every_range_has_a_title_and_a_bucket(range_: str) -> None:
    chosen = view(range_, "Asia/Kolkata", {"team": ["search"]}, NOW, (date(2026, 10, 1), date(2026, 10, 2)))
    assert chosen.title
    assert chosen.bucket == ("hour" if range_ in ("1h", "24h", "today", "yesterday", "month", "custom") else "day")
    assert chosen.part.where == chosen.today.where == {"team": ["search"]}


def test_the_axis_has_the_days_without_a_call_too() -> None:
    chosen = view("7d", "America/New_York", {}, NOW)
    assert buckets(chosen, ["2026-10-30"]) == ["2026-10-27", "2026-10-28", "2026-10-29", "2026-10-30", "2026-10-31", "2026-11-01", "2026-11-02"]
    assert buckets(view("all", "UTC", {}, NOW), ["2026-10-03", "2026-10-01", None]) == ["2026-10-01", "2026-10-02", "2026-10-03"]
    assert buckets(chosen, []) == []


def test_the_axis_of_a_25_hour_day_has_25_hours() -> None:
    chosen = view("yesterday", "America/New_York", {}, NOW)
    hours = buckets(chosen, ["2026-11-01T10:00-05:00"])
    assert len(hours) == 25
    assert (hours[0], hours[1], hours[2], hours[-1]) == (
        "2026-11-01T00:00-04:00", "2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00", "2026-11-01T23:00-05:00",
    )  # fmt: skip


def test_a_further_condition_never_widens() -> None:
    """A link in another team's words opens nothing."""
    part = Slice(where={"team": ["search"], "lane": "fast"})
    assert narrowed(part, "team", "search").where["team"] == ["search"]
    assert narrowed(part, "team", "support").where["team"] == []
    assert narrowed(part, "lane", "standard").where["lane"] == []
    assert narrowed(part, "run", "(none)").where == {"team": ["search"], "lane": "fast", "run": [None]}
