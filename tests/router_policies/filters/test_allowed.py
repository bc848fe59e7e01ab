from dataclasses import replace

from router_policies.filters.allowed import backend_allowed, lane_allowed
from router_policies.globs import globs
from router_policies.presets import default_policy
from router_policies.rules import Klass


def test_the_class_names_its_lanes(ask, lane, terms):
    """A lane that the class does not name is refused; a class that names none may use any."""
    only_fast = terms(klass=Klass(name="k", lanes=globs(["fast", "pool-*"])))
    assert lane_allowed(ask(), lane("pool-a"), only_fast) is None
    assert lane_allowed(ask(), lane("standard"), only_fast) == "lane standard is not among those of class k"
    assert lane_allowed(ask(), lane("anything"), terms(klass=Klass(name="k"))) is None


def test_the_team_names_its_backends(ask, lane, terms):
    """What is not among the team's backends sees none of its prompts."""
    closed = terms(policy=replace(default_policy(), backends=globs(["own-*"])))
    assert backend_allowed(ask(), lane(backend="own-1"), closed) is None
    assert backend_allowed(ask(), lane(backend="openai"), closed) == "backend openai is not among the team's backends"
    assert backend_allowed(ask(), lane(backend="openai"), terms()) is None
