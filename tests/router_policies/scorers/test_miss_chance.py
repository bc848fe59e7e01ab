import pytest

from router_policies.scorers import miss_chance


@pytest.mark.parametrize(("deadline_s", "low", "high"), [(100.0, 0.0, 0.001), (1.0, 0.49, 0.51), (0.1, 0.99, 1.0), (0.0, 1.0, 1.0)])
def test_the_chance_grows_as_the_deadline_shrinks(ask, lane, terms, deadline_s, low, high):
    """A deadline equal to the expected wait is missed half the time; one that is past, always."""
    one = lane(queue_s=1.0, prefill_s_per_token=0.0, seconds_per_output_token=0.0)
    assert low <= miss_chance(ask(), one, terms(first_token_deadline_s=deadline_s)) <= high
    assert low <= miss_chance(ask(), one, terms(total_deadline_s=deadline_s)) <= high


def test_both_deadlines_count(ask, lane, terms):
    """The worse of the two is the chance."""
    one = lane(queue_s=0.1, prefill_s_per_token=0.0, seconds_per_output_token=0.1)
    assert miss_chance(ask(), one, terms(first_token_deadline_s=60.0, total_deadline_s=1.0)) > 0.9
    assert miss_chance(ask(), one, terms()) == 0.0


def test_a_lane_without_spread_is_certain(ask, lane, terms):
    """No variance: it makes it or it does not."""
    one = lane(queue_s=1.0, prefill_s_per_token=0.0, spread=0.0)
    assert miss_chance(ask(), one, terms(first_token_deadline_s=0.9)) == 1.0
    assert miss_chance(ask(), one, terms(first_token_deadline_s=1.1)) == 0.0
