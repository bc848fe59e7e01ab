import pytest

from gateway.lanes.load import Load, backlog_s
from router_policies.live import Figures

FIGURES = Figures(service_s=4.0, first_token=(1.0, 1.0, 2.0, 1.0, 1.0, 1.0))


@pytest.mark.parametrize(("load", "in_flight", "slots", "wait"), [
    pytest.param(Load(100.0, 4, 0), 0, None, 0.0, id="nobody waits"),
    pytest.param(Load(100.0, 4, 2), 0, None, 2.0, id="two wait for four that run"),
    pytest.param(Load(100.0, 0, 2), 0, None, 8.0, id="nothing runs yet"),
    pytest.param(Load(100.0, 4, 2, waiting_tokens=1_000), 0, None, 2.0, id="work is better than a count"),
    pytest.param(Load(90.0, 4, 99), 0, None, 0.0, id="old figures are not used"),
    pytest.param(Load(90.0, 4, 99), 5, 2, 8.0, id="then our own calls have to do"),
    pytest.param(None, 1, 2, 0.0, id="a free slot"),
    pytest.param(None, 3, 2, 4.0, id="two over two slots"),
])
def test_the_wait_for_those_before(load, in_flight, slots, wait):
    """From the engine's own word, or from slots and calls in flight."""
    assert backlog_s(load, 101.0, in_flight, slots, 0.001, FIGURES) == pytest.approx(wait)
