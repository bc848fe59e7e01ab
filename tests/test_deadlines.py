"""The least of what class, client and library allow."""
from __future__ import annotations

import pytest

from gateway.deadlines import allowed_s, early_s, too_late


@pytest.mark.parametrize(("headers", "class_ms", "asked_ms", "seconds"), [
    ({}, None, None, None),
    ({}, 30_000.0, None, 30.0),
    ({}, 30_000.0, 2_000.0, 2.0),
    ({"x-stainless-read-timeout": "600"}, None, None, 599.5),
    ({"x-stainless-read-timeout": "10"}, 60_000.0, 20_000.0, 9.5),
    ({"x-stainless-read-timeout": "0.6"}, None, None, 0.3),
    ({"x-stainless-read-timeout": "nan"}, None, None, None),
    ({"x-stainless-read-timeout": "-1"}, None, None, None),
    ({"x-stainless-read-timeout": "never"}, None, 5_000.0, 5.0),
])  # fmt: skip
def test_the_least_counts(headers: dict[str, str], class_ms: float | None, asked_ms: float | None, seconds: float | None) -> None:
    """A library's own time-out less half a second, so that its user reads an answer and not a time-out."""
    assert allowed_s(headers, class_ms, asked_ms) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("now_s", "deadline_s", "late"), [
    (100.0, 102.0, False), (101.7, 102.0, False), (101.9, 102.0, True), (103.0, 102.0, True),
    (100.0, 100.05, False), (100.02, 100.05, False), (100.03, 100.05, True),
])  # fmt: skip
def test_no_attempt_is_begun_that_cannot_be_answered(now_s: float, deadline_s: float, late: bool) -> None:
    """With less than a fifth of a second, or half of a shorter time; the call came at 100."""
    assert too_late(now_s, 100.0, deadline_s) is late


@pytest.mark.parametrize(("deadline_s", "late_s", "early"), [
    (160.0, 0.0, 0.0), (160.0, 0.1, 0.5), (160.0, 5.0, 1.0), (101.5, 0.2, 0.5),
])  # fmt: skip
def test_the_time_is_up_earlier_where_the_loop_is_late(deadline_s: float, late_s: float, early: float) -> None:
    """By five of its late turns, by a second at most, by a third of the call's time at most; the call came at 100."""
    assert early_s(100.0, deadline_s, late_s) == pytest.approx(early)
    assert early_s(100.0, deadline_s, late_s) <= early_s(100.0, deadline_s)
