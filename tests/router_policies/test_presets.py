import pytest

from router_policies.policy import decide
from router_policies.presets import CLASSES, EMBEDDED_PRIORS, default_policy, example_lanes, prior


@pytest.mark.parametrize(("class_name", "lane_name"), [("interactive", "fast"), ("standard", "standard"), ("batch", "standard")])
@pytest.mark.parametrize("prompt", [20, 500, 4_000])
def test_shipped_classes_end_up_where_they_should(ask, class_name, lane_name, prompt):
    """On the embedded lanes as they look at the first start, whatever the length of the prompt."""
    decision = decide(default_policy(), ask(wished_class=class_name, prompt_tokens=prompt), example_lanes("m"))
    assert decision.ranked[0].lane.name == lane_name


def test_priors_exist_for_every_lane():
    """Unknown pools start as standard ones."""
    assert prior("embedded", "fast") is EMBEDDED_PRIORS["fast"]
    assert prior("openai", "fast").seconds_per_output_token < prior("openai", "standard").seconds_per_output_token
    assert prior("vllm", "pool-a") == prior("vllm", "standard")


def test_the_default_policy_is_the_same_for_all_teams():
    """So is its version."""
    assert default_policy("a").version == default_policy("b").version
    assert set(default_policy().classes) == set(CLASSES) == {"interactive", "agent", "standard", "batch"}
