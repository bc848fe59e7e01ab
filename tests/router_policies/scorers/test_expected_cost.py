import pytest

from router_policies.scorers import expected_cost, filled
from router_policies.types import Lane, Offer, Rates


def offer(lane: Lane, ceiling_usd_per_mtok: float | None = None) -> Offer:
    return Offer(lane.models, None, 0, *filled(lane.models["m"].rates, ceiling_usd_per_mtok))


@pytest.mark.parametrize(("cached", "written", "usd"), [
    pytest.param(0, 0, 1_000 * 1e-6 + 100 * 4e-6, id="cold"),
    pytest.param(800, 0, 200 * 1e-6 + 800 * 0.1e-6 + 100 * 4e-6, id="warm"),
    pytest.param(800, 150, 50 * 1e-6 + 800 * 0.1e-6 + 150 * 1.25e-6 + 100 * 4e-6, id="warm, and writes more"),
    pytest.param(9_999, 9_999, 1_000 * 0.1e-6 + 100 * 4e-6, id="never more than the prompt"),
])
def test_cost_is_tokens_times_rates(ask, lane, cached, written, usd):
    """Leaving a warm lane costs the lost cache, and the sum shows it."""
    one = ask(cached={"b/standard": cached}, written={"b/standard": written})
    assert expected_cost(one, lane(), offer(lane()), 100.0) == pytest.approx(usd)


def test_a_class_without_a_rate_is_never_free(ask, lane):
    """No cached rate: reckoned as uncached. No rate at all: at the ceiling."""
    one = ask(cached={"b/standard": 1_000})
    half, none = lane(rates=Rates(2_000_000, None, None, 0)), lane(rates=Rates())
    assert expected_cost(one, half, offer(half), 100.0) == pytest.approx(0.002)
    assert expected_cost(one, none, offer(none, 50.0), 100.0) == pytest.approx(1_100 * 50e-6)
