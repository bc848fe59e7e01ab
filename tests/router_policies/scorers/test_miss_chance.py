import math

import pytest

from router_policies.scorers import first_token_wait, miss_chance


def chance(ask, lane, terms):
    return miss_chance(ask, lane, terms, first_token_wait(ask, lane))


@pytest.mark.parametrize(("deadline_s", "low", "high"), [(100.0, 0.0, 0.001), (math.exp(-0.125), 0.49, 0.51), (0.1, 0.99, 1.0), (0.0, 1.0, 1.0)])
def test_the_chance_grows_as_the_deadline_shrinks(ask, lane, terms, deadline_s, low, high):
    """A deadline equal to the median, which lies below the mean, is missed half the time; one that is past, always."""
    one = lane(queue_s=1.0, prefill_s_per_token=0.0, seconds_per_output_token=0.0)
    assert low <= chance(ask(), one, terms(first_token_deadline_s=deadline_s)) <= high
    assert low <= chance(ask(), one, terms(total_deadline_s=deadline_s)) <= high


def test_both_deadlines_count(ask, lane, terms):
    """The worse of the two is the chance."""
    one = lane(queue_s=0.1, prefill_s_per_token=0.0, seconds_per_output_token=0.1)
    assert chance(ask(), one, terms(first_token_deadline_s=60.0, total_deadline_s=1.0)) > 0.9
    assert chance(ask(), one, terms()) == 0.0


def test_a_lane_without_spread_is_certain(ask, lane, terms):
    """No variance: it makes it or it does not."""
    one = lane(queue_s=1.0, prefill_s_per_token=0.0, spread=0.0)
    assert chance(ask(), one, terms(first_token_deadline_s=0.9)) == 1.0
    assert chance(ask(), one, terms(first_token_deadline_s=1.1)) == 0.0


def test_not_knowing_the_answers_length_makes_a_total_deadline_less_sure(ask, lane, terms):
    """A first token is as sure as it was."""
    one = lane(queue_s=0.1, prefill_s_per_token=0.0, seconds_per_output_token=0.1, spread=0.1)
    sure, unsure = ({"total_deadline_s": 15.0, "first_token_deadline_s": 1.0, "output_spread": spread} for spread in (0.0, 1.0))
    assert chance(ask(), one, terms(**sure)) < 0.01 < 0.1 < chance(ask(), one, terms(**unsure))
