import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_policies.globs import globs
from router_policies.policy import decide
from router_policies.presets import default_policy
from router_policies.queueing import Pace, cheap_of, fits_provider_batch, in_hours, kept_to, reserve_s, step
from router_policies.rules import Wait

DAY_S = 86_400.0
NOON_S = 1_790_000_000 // 86_400 * 86_400 + 43_200


@pytest.mark.parametrize(("hours", "zone", "inside"), [
    ("", "UTC", True), ("9-17", "UTC", True), ("22-6", "UTC", False), ("12-13", "UTC", True), ("13-12", "UTC", False),
    ("13-15", "Europe/Berlin", True), ("0-0", "UTC", False), ("0-24", "UTC", True),
])
def test_cheap_hours_are_those_of_the_zone(hours, zone, inside):
    """At noon UTC, which is 14:00 in Berlin's summer."""
    assert in_hours(Wait(hours=hours, timezone=zone), NOON_S) is inside


def test_a_call_holds_takes_a_cheap_lane_or_any():
    """By hour, until its deadline is at risk."""
    night, day = Wait(hours="22-6"), Wait()
    far, near = NOON_S + DAY_S, NOON_S + 60
    assert step(night, NOON_S, far, DAY_S, 0, Pace()) == "hold"
    assert step(day, NOON_S, far, DAY_S, 0, Pace()) == "cheap"
    assert step(night, NOON_S, near, DAY_S, 0, Pace()) == "any"


def test_a_long_queue_moves_up_sooner():
    """Twice what the calls ahead need."""
    pace = Pace(service_s=10.0, at_once=4)
    assert reserve_s(DAY_S, 4_000, pace) - reserve_s(DAY_S, 0, pace) == pytest.approx(2 * 1_000 * 10.0)


@given(st.floats(60, 30 * DAY_S), st.floats(0, 1), st.integers(0, 10_000))
def test_what_goes_to_a_provider_is_back_before_it_is_at_risk(window_s, passed, turnaround_s):
    """Should it take a quarter more than usual."""
    now, deadline = NOON_S + passed * window_s, NOON_S + window_s
    pace = Pace(turnaround_s=float(turnaround_s))
    if fits_provider_batch(now, deadline, window_s, pace):
        assert step(Wait(), now + turnaround_s, deadline, window_s, 0, pace) != "any" or turnaround_s == 0


def test_cheap_lanes_are_the_only_ones_of_the_narrowed_policy(ask, lane):
    """The others are refused with the reason."""
    lanes = [lane("standard"), lane("flex")]
    policy = kept_to(default_policy(), globs(["batch", "flex"]))
    assert [one.lane.name for one in decide(policy, ask(wished_class="batch"), lanes).ranked] == ["flex"]
    assert (cheap_of(Wait(), ["standard"]), cheap_of(Wait(), ["standard", "flex"])) == (False, True)
