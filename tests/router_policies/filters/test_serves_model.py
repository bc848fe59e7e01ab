from router_policies.filters.serves_model import serves_model


def test_a_lane_serves_the_models_it_lists(ask, lane, terms):
    """Names are exact: no lane guesses."""
    assert serves_model(ask(), lane(), terms()) is None
    assert serves_model(ask(), lane(), terms(model="M")) == "does not serve M"
