"""One time for machines whose clocks are apart."""
from __future__ import annotations

import time

import pytest

from gateway.core.clock import TOLERANCE_US, Clock


@pytest.mark.parametrize(("found", "unsure_us", "ahead_us"), [
    (0, 0, 0), (TOLERANCE_US, 0, 0), (-TOLERANCE_US, 0, 0), (TOLERANCE_US + 1, 0, TOLERANCE_US + 1), (-5_000_000, 0, -5_000_000),
    (5_000_000, 6_000_000, 0), (5_000_000, 4_000_000, 5_000_000),
])  # fmt: skip
def test_what_may_be_no_difference_is_none(found: int, unsure_us: int, ahead_us: int) -> None:
    """A question that takes long says little."""
    clock = Clock()
    clock.correct(found, unsure_us)
    assert clock.ahead_us == ahead_us


def test_it_goes_as_the_shared_one() -> None:
    clock = Clock()
    clock.correct(3_600_000_000)
    before_us = time.time_ns() // 1_000
    assert before_us <= clock.now_us() - 3_600_000_000 <= time.time_ns() // 1_000
    clock.correct(0)
    assert clock.ahead_us == 0
