"""Times in words, as people and addresses write them."""
from __future__ import annotations

import pytest

from gateway.ledger.query import slice_of
from gateway.ledger.reports import BadQuery

NOW_US = 1_796_097_600_000_000  # 2026-12-01T04:00Z
DAY_US = 86_400_000_000


@pytest.mark.parametrize(("text", "tz", "ago_us"), [
    ("24h", "UTC", DAY_US), ("7d", "UTC", 7 * DAY_US), ("90m", "UTC", 5_400_000_000),
    ("2026-12-01", "UTC", 4 * 3_600_000_000), ("2026-12-01", "Europe/Berlin", 5 * 3_600_000_000),
    ("2026-12-01T00:00", "Europe/Berlin", 5 * 3_600_000_000), ("2026-12-01T00:00Z", "Europe/Berlin", 4 * 3_600_000_000),
    ("2026-12-01T00:00+01:00", "UTC", 5 * 3_600_000_000), ("2026-12-01T00:00-05:00", "UTC", -3_600_000_000),
    ("2026-12-01T00:00 01:00", "UTC", 5 * 3_600_000_000), ("2026-12-01 00:00", "UTC", 4 * 3_600_000_000),
])  # fmt: skip
def test_times(text: str, tz: str, ago_us: int) -> None:
    """An age, a day of the zone, an instant; a plus that an address has made a blank is one all the same."""
    assert NOW_US - slice_of({"since": text, "tz": tz}, NOW_US).since_us == ago_us


@pytest.mark.parametrize("text", ["yesterday", "-1h", "1e3", "99999999d", "2026-13-01", "2026-12-01T25:00", "2026-12-01 01:00 x", " 01:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadQuery, match="is no time"):
        slice_of({"since": text}, NOW_US)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    """Its sums would be nought, which looks like an answer. A day is a range from its first moment to its last."""
    with pytest.raises(BadQuery, match="since lies after until"):
        slice_of({"since": "1h", "until": "2h"}, NOW_US)
    day = slice_of({"since": "2026-12-01", "until": "2026-12-01"}, NOW_US)
    assert day.until_us - day.since_us == DAY_US
