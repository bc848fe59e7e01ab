from __future__ import annotations

import pytest

from gateway.backends import probe
from gateway.backends.probe import LaneProbe
from gateway.settings_file import LaneSettings


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(probe, "time", made)
    return made


def answered(lane: LaneProbe, total_s: float) -> None:
    lane.answered(uncached_tokens=None, output_tokens=None, first_token_s=None, total_s=total_s)


def test_a_lane_that_says_nothing_rests_longer_each_time_in_a_row(clock: Clock) -> None:
    """A second at first, so that one refusal is no outage; at most five."""
    lane = LaneProbe(LaneSettings())
    rests = []
    for _ in range(2_000):
        lane.cool("answered 503", None)
        rests.append(lane.cooled_for_s(clock.now))
    assert rests[:4] == [1.0, 2.0, 4.0, 5.0]
    assert rests[-1] == 5.0
    clock.now += 6
    answered(lane, 0.5)
    lane.cool("answered 503", None)
    assert lane.cooled_for_s(clock.now) == 1.0


@pytest.mark.parametrize(("began_ago_s", "rests"), [(0.5, False), (3.0, True)])
def test_an_answer_that_was_asked_for_after_the_refusal_ends_the_rest(clock: Clock, began_ago_s: float, rests: bool) -> None:
    """A further try of the same call may be answered while the lane rests; what was under way before says nothing."""
    lane = LaneProbe(LaneSettings())
    lane.cool("answered 503", 30.0)
    assert lane.why_not(clock.now) == "answered 503; left alone for 30.0 s more"
    clock.now += 1
    answered(lane, began_ago_s)
    assert (lane.why_not(clock.now) is not None) == rests


def test_no_lane_rests_for_longer_than_a_minute(clock: Clock) -> None:
    lane = LaneProbe(LaneSettings())
    lane.cool("answered 429", 86_400.0)
    assert lane.cooled_for_s(clock.now) == 60.0
    lane.cool_as_told("answered 429", 5.0)
    assert lane.cooled_for_s(clock.now) == 60.0
