"""Windows are those of the wall calendar of a zone, exact to the microsecond, without gaps or overlaps."""
from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets.windows import Window, next_time, window, zone

ZONES = (
    "UTC", "America/New_York", "Europe/Berlin", "America/Havana", "Africa/Cairo", "Asia/Beirut", "America/Sao_Paulo", "Pacific/Apia",
    "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Kiritimati", "America/St_Johns",
)
instants = st.integers(int(datetime(2005, 1, 1, tzinfo=UTC).timestamp()) * 10**6, int(datetime(2036, 1, 1, tzinfo=UTC).timestamp()) * 10**6)


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def key(kind: str, place: str, at_us: int) -> tuple[int, ...]:
    """What names the day, week or month on the wall."""
    day = datetime.fromtimestamp(at_us // 10**6, ZoneInfo(place)).date()
    return {"day": (day.toordinal(),), "week": day.isocalendar()[:2], "month": (day.year, day.month)}[kind]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES), instants)
def test_a_window_is_all_instants_of_its_date_and_no_other(kind: str, place: str, at_us: int) -> None:
    """It holds the instant, begins and ends where the date on the wall changes, and touches its neighbours."""
    span = window(kind, place, at_us)  # type: ignore[arg-type]
    assert span.starts_us is not None
    assert span.ends_us is not None
    assert span.holds(at_us)
    for inside in (span.starts_us, span.ends_us - 1):
        assert key(kind, place, inside) == key(kind, place, at_us)
        assert window(kind, place, inside) == span  # type: ignore[arg-type]
    assert key(kind, place, span.starts_us - 1) != key(kind, place, at_us)
    assert key(kind, place, span.ends_us) != key(kind, place, at_us)
    after = window(kind, place, span.ends_us)  # type: ignore[arg-type]
    assert after.starts_us == span.ends_us
    assert not span.holds(span.ends_us)


@pytest.mark.parametrize(("place", "noon", "hours"), [
    ("Europe/Berlin", "2026-03-29T10:00:00+00:00", 23), ("Europe/Berlin", "2026-10-25T10:00:00+00:00", 25),
    ("America/New_York", "2026-03-08T17:00:00+00:00", 23), ("Australia/Lord_Howe", "2026-04-05T01:00:00+00:00", 24.5),
    ("America/Havana", "2026-11-01T17:00:00+00:00", 25), ("Africa/Cairo", "2026-04-24T10:00:00+00:00", 23), ("UTC", "2026-03-29T10:00:00+00:00", 24),
])
def test_days_are_as_long_as_the_clocks_make_them(place: str, noon: str, hours: float) -> None:
    """Also where midnight itself is skipped (Cairo) or comes twice (Havana)."""
    span = window("day", place, us(noon))
    assert (span.ends_us or 0) - (span.starts_us or 0) == hours * 3_600_000_000


@pytest.mark.parametrize(("kind", "place", "at", "starts", "ends"), [
    ("month", "America/New_York", "2026-03-01T04:30:00+00:00", "2026-02-01T05:00:00+00:00", "2026-03-01T05:00:00+00:00"),
    ("month", "America/New_York", "2026-03-31T12:00:00+00:00", "2026-03-01T05:00:00+00:00", "2026-04-01T04:00:00+00:00"),
    ("week", "Europe/Berlin", "2026-11-29T22:59:59+00:00", "2026-11-22T23:00:00+00:00", "2026-11-29T23:00:00+00:00"),
    ("day", "Pacific/Apia", "2011-12-30T09:59:59+00:00", "2011-12-29T10:00:00+00:00", "2011-12-30T10:00:00+00:00"),
])
def test_known_windows(kind: str, place: str, at: str, starts: str, ends: str) -> None:
    """Thirty days are not a month, a week begins on Monday, and Samoa had no 30 December 2011."""
    assert window(kind, place, us(at)) == Window(us(starts), us(ends))  # type: ignore[arg-type]


def test_total_has_no_bounds() -> None:
    """And holds every instant."""
    assert window("total", "UTC", 5) == Window(None, None)
    assert Window(None, None).holds(-(10**18))


def test_an_unknown_zone_is_an_error() -> None:
    """With an example of a good one."""
    for name in ("Europe/Berlln", "../etc/passwd", ""):
        with pytest.raises(ValueError, match="Europe/Berlin"):
            zone(name)


@pytest.mark.parametrize(("place", "clock", "days", "after", "found"), [
    pytest.param("UTC", (8, 0), "0123456", "2026-12-01T07:59:59+00:00", "2026-12-01T08:00:00+00:00", id="today"),
    pytest.param("UTC", (8, 0), "0123456", "2026-12-01T08:00:00+00:00", "2026-12-02T08:00:00+00:00", id="after it, not at it"),
    pytest.param("UTC", (8, 0), "0", "2026-12-01T09:00:00+00:00", "2026-12-07T08:00:00+00:00", id="on Mondays"),
    pytest.param("Pacific/Kiritimati", (2, 0), "0123456", "2026-12-01T11:00:00+00:00", "2026-12-01T12:00:00+00:00", id="tomorrow there"),
    pytest.param("Europe/Berlin", (8, 0), "0123456", "2026-03-28T07:00:00+00:00", "2026-03-29T06:00:00+00:00", id="the day has 23 hours"),
    pytest.param("Europe/Berlin", (8, 0), "0123456", "2026-10-24T06:00:00+00:00", "2026-10-25T07:00:00+00:00", id="the day has 25 hours"),
    pytest.param("Europe/Berlin", (2, 30), "0123456", "2026-03-28T12:00:00+00:00", "2026-03-29T01:30:00+00:00", id="a time that is skipped"),
    pytest.param("Europe/Berlin", (2, 30), "6", "2026-10-25T00:00:00+00:00", "2026-10-25T00:30:00+00:00", id="a time that comes twice"),
    pytest.param("Europe/Berlin", (2, 30), "6", "2026-10-25T00:30:00+00:00", "2026-11-01T01:30:00+00:00", id="counts once"),
])
def test_a_time_of_day_comes_once_a_day_by_the_clocks_of_its_zone(
    place: str, clock: tuple[int, int], days: str, after: str, found: str
) -> None:  # fmt: skip
    assert next_time(*clock, [int(day) for day in days], place, us(after)) == us(found)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), st.sets(st.integers(0, 6), min_size=1), instants)
def test_there_is_always_a_next_time(place: str, hour: int, minute: int, days: set[int], at_us: int) -> None:
    """Later, within the days of a week and one that clocks skip."""
    assert at_us < next_time(hour, minute, days, place, at_us) <= at_us + 9 * 86_400_000_000
