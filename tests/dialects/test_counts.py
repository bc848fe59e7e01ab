from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.counts import Counters, merge, part


@pytest.mark.parametrize(("value", "expected", "flags"), [
    (5, 5, []), (0, 0, []), (5.0, 5, []), (None, None, []),
    (-5, None, ["invalid_n"]), (2.5, None, ["invalid_n"]), (True, None, ["invalid_n"]), ("5", None, ["invalid_n"]), (2**60, None, ["invalid_n"]),
])
def test_only_whole_numbers_count(value: Any, expected: int | None, flags: list[str]) -> None:
    """What cannot be a count is no count and is flagged; null is only absent."""
    counters = Counters()
    assert counters.take({"n": value}, "n") == expected
    assert counters.flags == flags


def test_the_last_value_that_is_not_null_wins() -> None:
    """Running totals are overwritten member by member, never added."""
    assert merge({"a": 1, "b": 2}, {"a": 3, "b": None, "c": 4}) == {"a": 3, "b": 2, "c": 4}
    assert part({"a": [1]}, "a") == {}
