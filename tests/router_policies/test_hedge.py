import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_policies.hedge import _Wait, _waits, hedge, said
from router_policies.policy import decide
from router_policies.presets import default_policy
from router_policies.rules import Klass

KLASS = Klass(name="standard", value_usd_per_hour=360.0, hedge=True)


def found(ask, lanes, klass=KLASS, **how):
    decision = decide(replace(default_policy(), classes={"standard": klass}), ask(), lanes)
    return decision, hedge(decision, decision.ranked[0], **{"stream": True, **how})


@pytest.fixture
def pair(lane):
    return [lane(backend="a", queue_s=1.0, spread=1.0), lane(backend="b", queue_s=1.0, spread=1.0)]


def test_a_second_lane_is_asked_once_silence_costs_more_than_it(ask, pair):
    """And the words for the ledger say what it was worth."""
    decision, when = found(ask, pair)
    assert when is not None
    assert when.gain_usd > when.cost_usd == when.second.expected_cost_usd > 0
    assert when.second.lane.key == decision.ranked[1].lane.key
    assert "was silent for" in said(when, decision.ranked[0])


@pytest.mark.parametrize(("klass", "how"), [
    pytest.param(replace(KLASS, hedge=False), {}, id="the class must allow it"),
    pytest.param(replace(KLASS, value_usd_per_hour=0.01), {}, id="nobody waits"),
    pytest.param(KLASS, {"siblings": 5_000}, id="the run waits for others"),
])
def test_what_is_not_worth_it_is_not_done(ask, pair, klass, how):
    """Off unless allowed, and then by the sum."""
    assert found(ask, pair, klass, **how)[1] is None


def test_one_lane_alone_is_never_hedged(ask, lane):
    """The same lane is no second one."""
    assert found(ask, [lane()])[1] is None


def test_what_is_worth_more_is_hedged_sooner(ask, pair):
    """More for a second, less silence."""
    calm, urgent = (found(ask, pair, replace(KLASS, value_usd_per_hour=value))[1] for value in (5.0, 100_000.0))
    assert calm is not None
    assert urgent is not None
    assert urgent.after_s < calm.after_s


def test_a_deadline_at_risk_is_worth_its_price(ask, pair):
    """Where seconds are worth nothing, a missed deadline may be."""
    late = replace(KLASS, value_usd_per_hour=0.0, first_token_deadline_ms=2_500, epsilon=0.5)
    assert found(ask, pair, late)[1] is None
    priced = found(ask, pair, replace(late, missed_deadline_usd=1.0))[1]
    assert priced is not None
    assert priced.after_s < 2.5


def test_the_expected_waits_are_those_of_a_simulation():
    """What the integral says of remaining wait, of the pair's, and of who is first, drawn a hundred thousand times."""
    a, b, silent, rng = _Wait(1.0, 0.8, 0.0), _Wait(0.7, 0.5, 0.0), 1.5, random.Random(1)

    def draw(wait):
        return wait.mean_s * rng.lognormvariate(-wait.sigma**2 / 2, wait.sigma)

    pairs = [(first - silent, draw(b)) for first in (draw(a) for _ in range(400_000)) if first > silent]
    count = len(pairs)
    drawn = sum(x for x, _ in pairs) / count, sum(min(pair) for pair in pairs) / count, sum(y < x for x, y in pairs) / count
    assert _waits(a, b, silent, a.over(silent)) == pytest.approx(drawn, rel=0.08)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.001, 600), st.floats(0.05, 2.5), st.floats(0.001, 600), st.floats(0.05, 2.5), st.floats(0.01, 3.0),
)  # fmt: skip
def test_a_second_lane_never_makes_the_wait_longer(mean_a, sigma_a, mean_b, sigma_b, share):
    """Whatever the two are like."""
    a, b = _Wait(mean_a, sigma_a, 0.0), _Wait(mean_b, sigma_b, 0.0)
    silent = share * mean_a
    alive = a.over(silent)
    if alive > 1e-6:
        alone, both, second_first = _waits(a, b, silent, alive)
        assert 0.0 <= both <= alone * (1 + 1e-9)
        assert 0.0 <= second_first <= 1.0
