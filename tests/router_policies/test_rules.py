from dataclasses import replace

import pytest

from router_policies.globs import globs
from router_policies.rules import ClientMay, Klass, ModelRules


def test_a_lane_has_a_place_or_none():
    """The first pattern that matches; a class without lanes takes any."""
    klass = Klass(name="k", lanes=globs(["fast*", "standard"]))
    assert [klass.place(name) for name in ("fast-2", "standard", "flex", "fast-2")] == [0, 1, None, 0]
    assert Klass(name="k").place("x") == 0
    assert replace(klass, lanes=globs(["flex"])).place("flex") == 0, "what was remembered is not copied"


@pytest.mark.parametrize(("model", "refused"), [("a-1", False), ("b-1", True), ("a-preview", True)])
def test_deny_beats_allow(model, refused):
    """And what is not allowed is refused."""
    rules = ModelRules(allow=globs(["a-*"]), deny=globs(["*-preview"]))
    assert (rules.refusal(model) is not None) is refused


def test_a_refusal_is_safe_to_print():
    """The model's name is the client's text."""
    assert "\n" not in (ModelRules(allow=()).refusal("a\nb") or "")


def test_clients_may_choose_all_none_or_some():
    """By the policy's word."""
    assert ClientMay(choose_class=True).choose("x")
    assert not ClientMay(choose_class=False).choose("x")
    assert ClientMay(choose_class=frozenset({"x"})).choose("x")
    assert not ClientMay(choose_class=frozenset({"x"})).choose("y")
