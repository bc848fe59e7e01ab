from router_policies.menus import menu


def test_prices_stand_in_their_ratios():
    """Priority twice, flex half, the own pool 0.6 of standard, for every model."""
    uncached = {lane.key: lane.rates["x"].uncached for lane in menu(["x", "y"])}
    standard = uncached["provider/standard"]
    assert {key: price / standard for key, price in uncached.items()} == {
        "provider/priority": 2.0, "provider/standard": 1.0, "provider/flex": 0.5, "own/standard": 0.6,
    }
