from dataclasses import replace

import pytest

from router_policies.presets import default_policy
from router_policies.scorers import expected_cost
from router_policies.types import Rates


@pytest.mark.parametrize(("cached", "written", "usd"), [
    pytest.param(0, 0, 1_000 * 1e-6 + 100 * 4e-6, id="cold"),
    pytest.param(800, 0, 200 * 1e-6 + 800 * 0.1e-6 + 100 * 4e-6, id="warm"),
    pytest.param(800, 150, 50 * 1e-6 + 800 * 0.1e-6 + 150 * 1.25e-6 + 100 * 4e-6, id="warm, and writes more"),
    pytest.param(9_999, 9_999, 1_000 * 0.1e-6 + 100 * 4e-6, id="never more than the prompt"),
])
def test_cost_is_tokens_times_rates(ask, lane, terms, cached, written, usd):
    """Leaving a warm lane costs the lost cache, and the sum shows it."""
    one = ask(cached={"b/standard": cached}, written={"b/standard": written})
    assert expected_cost(one, lane(), terms()) == pytest.approx(usd)


def test_a_class_without_a_rate_is_never_free(ask, lane, terms):
    """No cached rate: reckoned as uncached. No rate at all: at the ceiling."""
    one = ask(cached={"b/standard": 1_000})
    assert expected_cost(one, lane(rates=Rates(2_000_000, None, None, 0)), terms()) == pytest.approx(0.002)
    ceiling = terms(policy=replace(default_policy(), unpriced="ceiling", ceiling_usd_per_mtok=50.0))
    assert expected_cost(one, lane(rates=Rates()), ceiling) == pytest.approx(1_100 * 50e-6)
