"""Which latency class an ask belongs to: the client's word if the policy lets it, else a rule, else learnt, else the default.

`learnt` is a function from outside (`waiting.Model.learnt`) that names a class where it is sure, and never overrides a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from router_policies.presets import TIER_CLASSES
from router_policies.rules import Klass, Policy, RuleFailed
from router_policies.types import Ask

Learnt = Callable[[Policy, Ask], str | None]


class Verdict(NamedTuple):
    """The class and who said so; `notes` are wishes that were not granted, `errors` names of rules that failed."""

    klass: Klass
    source: str
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def classify(policy: Policy, ask: Ask, learnt: Learnt | None = None) -> Verdict:
    notes: list[str] = []
    errors: list[str] = []
    if ask.wished_class is not None or ask.wished_tier:
        wished = _wish(policy, ask, notes)
        if wished is not None:
            return Verdict(wished[0], wished[1], tuple(notes))
    for rule in policy.rules:
        try:
            if rule.when(ask):
                return Verdict(rule.klass, f"rule {rule.name}", tuple(notes), tuple(errors))
        except RuleFailed:
            errors.append(rule.name)
    guess = learnt(policy, ask) if learnt is not None else None
    if guess is not None and guess in policy.classes:
        return Verdict(policy.classes[guess], "learnt", tuple(notes), tuple(errors))
    own = policy.projects.get(ask.project) if ask.project else None
    klass = policy.classes[own or policy.default_class]
    return Verdict(klass, f"default of project {ask.project}" if own else "default", tuple(notes), tuple(errors))


def _wish(policy: Policy, ask: Ask, notes: list[str]) -> tuple[Klass, str] | None:
    """What the client asked for by header, else by service tier, where it may."""
    tier = TIER_CLASSES.get(ask.wished_tier or "")
    for name, source in ((ask.wished_class, "client's word"), (tier, f"service tier {ask.wished_tier}")):
        if name is None:
            continue
        klass = policy.classes.get(name)
        if klass is not None and policy.client_may.choose(name):
            return klass, source
        notes.append(_not_granted(policy, name, source, known=klass is not None))
    return None


def _not_granted(policy: Policy, name: str, source: str, *, known: bool) -> str:
    if known:
        return f"{source} asked for class {name}, which the policy does not let clients choose"
    return f"{source} asked for a class that the policy does not know"
