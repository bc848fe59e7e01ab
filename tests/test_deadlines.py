"""The least of what class, client and library allow."""
from __future__ import annotations

import pytest

from gateway.deadlines import allowed_s


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
