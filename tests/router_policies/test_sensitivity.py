from dataclasses import replace

import pytest

from router_policies.presets import CLASSES, default_policy
from router_policies.rules import ClientMay, Rule, RuleFailed
from router_policies.sensitivity import classify


def _fails(ask):
    raise RuleFailed("no such key")


POLICY = replace(default_policy(), rules=(
    Rule(name="broken", klass=CLASSES["interactive"], when=_fails),
    Rule(name="streams", klass=CLASSES["agent"], when=lambda ask: ask.stream),
    Rule(name="too", klass=CLASSES["batch"], when=lambda ask: ask.stream),
))


@pytest.mark.parametrize(("given", "class_name", "source"), [
    pytest.param({"wished_class": "batch", "wished_tier": "priority", "stream": True}, "batch", "client's word", id="the header first"),
    pytest.param({"wished_tier": "priority", "stream": True}, "interactive", "service tier priority", id="then the service tier"),
    pytest.param({"wished_tier": "auto", "stream": True}, "agent", "rule streams", id="a tier without meaning is no wish"),
    pytest.param({"stream": True}, "agent", "rule streams", id="then the first rule that matches"),
    pytest.param({}, "standard", "default", id="then the default"),
    pytest.param({"wished_class": "urgent!"}, "standard", "default", id="an unknown class is no class"),
])
def test_the_class_comes_from_the_first_who_may_say(ask, given, class_name, source):
    """Client, tier, rules, default."""
    verdict = classify(POLICY, ask(**given))
    assert (verdict.klass.name, verdict.source) == (class_name, source)


def test_a_wish_that_is_not_granted_is_noted(ask):
    """The rules decide then, and the reason says why the wish did not."""
    closed = replace(POLICY, client_may=ClientMay(choose_class=frozenset({"batch"})))
    verdict = classify(closed, ask(wished_class="interactive", stream=True))
    assert verdict.klass.name == "agent"
    assert "does not let clients choose" in verdict.notes[0]


def test_a_rule_that_fails_does_not_match_and_is_named(ask):
    """So that it can be counted, and mended."""
    assert classify(POLICY, ask()).errors == ("broken",)


def test_what_is_learnt_never_overrides_a_rule(ask):
    """It stands between the rules and the default."""
    assert classify(POLICY, ask(stream=True), lambda *_: "batch").source == "rule streams"
    assert classify(POLICY, ask(), lambda *_: "batch").klass.name == "batch"
    assert classify(POLICY, ask(), lambda *_: "no-such-class").source == "default"
