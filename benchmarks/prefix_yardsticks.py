"""What plans cost at a provider that know more than the gateway can: the future (`prefix_clairvoyant`), or the chances
(`prefix_informed`)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import prefix_clairvoyant as clairvoyant
from benchmarks import prefix_informed
from benchmarks.prefix_chances import Cut, cut
from benchmarks.prefix_clairvoyant import Prompts
from benchmarks.prefix_informed import Known, by_all, by_others, informed
from benchmarks.prefix_oracle import Prices, bound, shared_bound
from benchmarks.providers.automatic import AutomaticCache
from benchmarks.providers.marked import MarkRules
from benchmarks.providers.rules import Automatic, OpenAI, Provider, Qwen, has_breakpoints


def oracle(
    provider: Provider, prices: Prices, prompts: Prompts, sessions: Sequence[int]
) -> tuple[float, float]:
    """What the plan that knows the future costs by the provider's rules, and the bound without them."""
    least = bound(prompts, prices) if provider.units is None else shared_bound(prompts, prices, provider.units)
    cache = provider.make()
    if provider.wire == "anthropic":
        rules = MarkRules(ttls=provider.lives, minimum=provider.minimum)
        return clairvoyant.by_marks(prompts, prices, clairvoyant.Marked(rules)), least
    if isinstance(cache, Qwen):
        rules = cache.explicit.rules
        explicit = replace(prices, automatic=None)
        return clairvoyant.either(
            prompts, sessions,
            lambda some: clairvoyant.by_marks(some, explicit, clairvoyant.Marked(rules)),
            lambda some: clairvoyant.automatically(some, prices, Qwen().implicit),
        ), least  # fmt: skip
    if isinstance(cache, OpenAI) and has_breakpoints(provider.model):
        return clairvoyant.by_marks(prompts, prices, clairvoyant.Breakpoints()), least
    if isinstance(cache, Automatic) and provider.lives:
        rules_of = cache.cache.rules
        return clairvoyant.by_lifetime(prompts, prices, provider.lives, lambda: AutomaticCache(rules_of)), least
    return least, least


def foreseeable(
    provider: Provider, prices: Prices, days: Sequence[Prompts], sessions: Sequence[Sequence[int]]
) -> tuple[float, float, float]:
    """What plans cost that know the chances of all these days: as all show them, as the other sessions do, and as all show them
    with rules left aside. `sessions`: of each prompt of each day."""
    marked = not isinstance(provider.make(), Automatic)
    cuts = [cut(prompts, prices.minimum, by_marks=marked) for prompts in days]
    aside = sum(informed(prompts, prices, by_marks=marked, known=by_all(cuts, prices)(0)) for prompts in days)
    prices = replace(prices, automatic=None)  # by marks alone at Qwen
    own, others = by_all(cuts, prices), by_others(cuts, sessions, prices)
    pairs = list(zip(days, cuts, strict=True))
    by_own = sum(_by_rules(provider, prices, prompts, found, own) for prompts, found in pairs)
    return by_own, sum(_by_rules(provider, prices, *each, others(day)) for day, each in enumerate(pairs)), aside


def _by_rules(provider: Provider, prices: Prices, prompts: Prompts, found: Cut, known: Known) -> float:
    cache = provider.make()
    if isinstance(cache, Automatic):
        return prefix_informed.by_lifetime(prompts, found, prices, provider.lives, cache.cache, known)
    marks: clairvoyant.Marks = clairvoyant.Breakpoints()
    if not isinstance(cache, OpenAI):
        rules = MarkRules(ttls=provider.lives, minimum=provider.minimum)
        marks = clairvoyant.Marked(cache.explicit.rules if isinstance(cache, Qwen) else rules)
    return prefix_informed.by_marks(prompts, found, prices, marks, known)
