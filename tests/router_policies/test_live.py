import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_policies.live import LENGTHS, Forecast, LaneFigures, Lengths, Mean, Prior, Rent, Sketch, rent

PRIOR = Prior(first_token_s=0.5, prefill_s_per_token=0.0, seconds_per_output_token=0.02)


def figures(*answers, start=0.0):
    lane = LaneFigures(PRIOR)
    for i, answer in enumerate(answers):
        lane.saw(**{"uncached_tokens": 20, "output_tokens": 100, "first_token_s": None, "now_s": start + i, **answer})
    return lane


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=200))
def test_quantiles_lie_among_what_was_seen(values):
    """In order, and within one step of a value that came."""
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    found = sketch.quantiles(0.1, 0.5, 0.9, 0.99)
    assert found == sorted(found)
    assert min(values) / 1.08 <= found[0]
    assert found[-1] <= max(values) * 1.08


def test_quantiles_are_right_and_forget():
    """Within 15 % on a log-normal stream; after a change the old half is gone."""
    rng, sketch = random.Random(1), Sketch(half_life_answers=500)
    for _ in range(5_000):
        sketch.add(rng.lognormvariate(0, 0.5))
    p50, p95 = sketch.quantiles(0.5, 0.95)
    assert p50 == pytest.approx(1.0, rel=0.15)
    assert p95 == pytest.approx(math.exp(0.5 * 1.645), rel=0.15)
    for _ in range(5_000):
        sketch.add(10 * rng.lognormvariate(0, 0.5))
    assert sketch.quantiles(0.05)[0] > 2.0
    assert Sketch().quantiles(0.5, 0.9) == [1.0, 1.0]


def test_it_counts_for_ever_without_overflow():
    """Weights are rescaled before they grow out of a float."""
    sketch = Sketch(half_life_answers=1.0)
    for i in range(5_000):
        sketch.add(1.0 + i % 2)
    assert sketch.weight == pytest.approx(2.0, rel=0.1)


def test_a_mean_believes_a_change_after_a_dozen_answers_and_a_pause():
    """By answers where there are many, by time where there are few."""
    mean = Mean(1.0)
    for i in range(40):
        mean.add(1.0, float(i))
    for i in range(12):
        mean.add(3.0, 40.0 + i)
    assert 1.9 < mean.value < 2.2
    mean.add(9.0, 40_000.0)
    assert mean.value == pytest.approx(9.0, rel=0.01)


def test_first_token_and_pace_are_learnt_apart():
    """A slow start with a long answer, and a quick start with a short one."""
    slow = figures(*[{"first_token_s": 3.0, "output_tokens": 200, "total_s": 3.0}] * 20).view()
    quick = figures(*[{"first_token_s": 0.05, "output_tokens": 2, "total_s": 0.051}] * 20).view()
    assert slow.first_token[0] > 5 > 1 > quick.first_token[0]
    assert slow.pace < 0.01
    assert (slow.samples, quick.samples) == (20, 20)


def test_an_answer_that_does_not_stream_moves_both():
    """Its total is shared out as the two are thought to stand."""
    view = figures(*[{"total_s": 0.249}] * 30).view()  # a tenth of the first guess
    assert view.first_token[0] == pytest.approx(0.1, rel=0.05)
    assert view.pace == pytest.approx(0.1, rel=0.05)


def test_lengths_of_prompts_are_kept_apart():
    """And what was not seen takes the nearest."""
    lane = figures(*[{"uncached_tokens": 20_000, "first_token_s": 5.0, "total_s": 6.0}] * 9, {"first_token_s": 0.25, "total_s": 0.5})
    first = lane.view().first_token
    assert first[0] < 1.5 < 9.0 < first[3]
    assert first[3] == first[4] == first[LENGTHS - 1]


def test_a_queue_that_was_known_is_nobodys_pace():
    """Else the wait would be counted twice."""
    assert figures(*[{"first_token_s": 4.5, "total_s": 5.0, "backlog_s": 4.0}] * 20).view().first_token[0] == pytest.approx(1.0, rel=0.05)


def test_spread_is_learnt_from_the_tail():
    """Sigma of the log within a quarter; a steady lane becomes sure."""
    rng = random.Random(2)
    wild = figures(*[{"first_token_s": 0.5 * rng.lognormvariate(0, 0.9), "total_s": 60.0} for _ in range(2_000)]).view()
    steady = figures(*[{"first_token_s": 0.5, "total_s": 2.48}] * 500).view()
    assert wild.first_token_spread == pytest.approx(0.9, rel=0.25)
    assert steady.first_token_spread < 0.1 < LaneFigures(PRIOR).view().first_token_spread


@pytest.mark.parametrize("given", [{"total_s": 0.0}, {"total_s": math.nan}, {"total_s": -1.0}])
def test_a_clocks_slip_teaches_nothing(given):
    """No time, no answer."""
    assert figures(given).view().samples == 0


def test_lengths_fall_back_from_route_to_model_to_prior():
    """Per team, model and class once there is something."""
    lengths = Lengths(Forecast(256.0))
    assert lengths.of("t", "m", "agent") == Forecast(256.0)
    for _ in range(300):
        lengths.saw("t", "m", "agent", 20, 1.0)
    assert lengths.of("t", "m", "agent").tokens == pytest.approx(20, rel=0.1)
    assert lengths.of("other", "m", "agent").tokens == pytest.approx(20, rel=0.1)
    assert lengths.of("t", "x", "agent").tokens == 256.0
    assert lengths.quantiles("t", "m", "agent", 0.5)[0] == pytest.approx(20, rel=0.09)
    assert lengths.quantiles("t", "x", "agent", 0.5) == []


def test_routes_are_bounded():
    """Names come from clients."""
    lengths = Lengths(Forecast(256.0), max_routes=2)
    for n in range(9):
        lengths.saw("t", f"m{n}", "c", 5, 1.0)
    assert lengths.of("t", "m8", "c").tokens == 256.0


def test_a_slot_costs_what_it_does_for_others_as_soon_as_somebody_waits():
    """In tokens of the average answer for each second of it, and the more, the longer the queue is."""
    view = figures(*[{"uncached_tokens": 400, "output_tokens": 50, "first_token_s": 1.0, "total_s": 2.0}] * 200).view()
    assert rent(view, 0.0) is None
    assert rent(LaneFigures(PRIOR).view(), 1.0) is None
    one, two = rent(view, 1.0), rent(view, 2.0)
    assert one == Rent(pytest.approx(3 * 400 / 2 * 0.5, rel=0.01), pytest.approx(3 * 50 / 2 * 0.5, rel=0.01))
    assert two == Rent(*[pytest.approx(2 * tokens) for tokens in one])
