from dataclasses import FrozenInstanceError

import pytest

from router_policies.policy import decide
from router_policies.presets import default_policy


def test_values_are_frozen(ask, lane):
    """A snapshot is shared by all calls."""
    with pytest.raises(FrozenInstanceError):
        lane().healthy = False
    with pytest.raises(AttributeError):
        ask().model = "x"


def test_a_ranked_lane_knows_the_backends_own_name(ask, lane):
    """Dispatch needs no second look-up."""
    decision = decide(default_policy(), ask(), [lane()])
    assert (decision.class_name, decision.ranked[0].upstream_model) == ("standard", "m")
