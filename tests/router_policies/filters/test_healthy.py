import pytest

from router_policies.filters.healthy import healthy


@pytest.mark.parametrize(("given", "says"), [
    pytest.param({}, None, id="up"),
    pytest.param({"healthy": False}, "not healthy", id="down"),
    pytest.param({"healthy": False, "why_not": "cooling for 12 s"}, "not healthy: cooling for 12 s", id="with the reason"),
])
def test_only_a_healthy_lane_serves(ask, lane, terms, given, says):
    """A lane that is down says why, if that is known."""
    assert healthy(ask(), lane(**given), terms()) == says
