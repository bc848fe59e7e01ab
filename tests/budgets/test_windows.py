"""Windows are those of the wall calendar of a zone, exact to the microsecond, without gaps or overlaps."""
from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets.windows import Window, window, zone

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
