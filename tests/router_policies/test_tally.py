import math

import pytest

from router_policies.rules import Klass
from router_policies.simulate import Outcome, Recorded
from router_policies.tally import STRETCHES, Sums, Tally, interval, resampled


def outcome(cost=1.0, first=1.0, missed=False):
    return Outcome("a/standard", Klass(name="k", value_usd_per_hour=3600.0), cost, 10, 5, 2, first, 2.0, 0.0, missed, 0.0, 0.0)


def tally(costs, every_s=1.0):
    found = Tally()
    for n, cost in enumerate(costs):
        found.add(Recorded(n * every_s, 15, 2), outcome(cost), "k")
    return found


def test_sums_add_up_however_long_the_trace_becomes():
    """Stretches double and nothing is lost."""
    found = tally([1.0] * 3_000, every_s=7.0)
    sums = found.sums()
    assert (sums.calls, sums.cost_usd, sums.waited_usd, sums.uncached, sums.cached, sums.output) == (3_000, 3_000.0, 6_000.0, 30_000, 15_000, 6_000)
    assert sums.calls == sum(found.sums(("default", "k"), [n]).calls for n in range(STRETCHES))
    assert found.groups() == [("default", "k")]


def test_a_call_that_nobody_served_is_a_miss():
    """It costs nothing and counts."""
    found = Tally()
    found.add(Recorded(0.0, 1, 1), None, "k")
    found.add(Recorded(0.0, 1, 1), outcome(missed=True), "k")
    found.add(Recorded(0.0, 1, 1), outcome(), "k")
    assert (found.sums().refused, found.sums().miss_share) == (1, pytest.approx(2 / 3))


def test_quantiles_of_the_first_token():
    """Within the 2 % of a step; none is no number."""
    sums = Sums()
    for n in range(1, 101):
        sums.add(outcome(first=n / 10))
    assert sums.first_token_s(0.5) == pytest.approx(5.0, rel=0.02)
    assert sums.first_token_s(0.95) == pytest.approx(9.5, rel=0.02)
    assert math.isnan(Sums().first_token_s(0.5))


def test_the_interval_of_a_difference_is_that_of_the_difference():
    """Both runs are drawn alike, so a constant saving is sure, though each sum is not."""
    costs = [1.0 + (n // 40) % 7 for n in range(640)]
    drawn = resampled([tally(costs), tally([cost - 0.5 for cost in costs])])
    low, high = interval(old.cost_usd for old, _ in drawn)
    assert low < sum(costs) < high
    assert high - low > 50
    low, high = interval((old.cost_usd - new.cost_usd) / old.calls for old, new in drawn)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert all(map(math.isnan, interval([])))
