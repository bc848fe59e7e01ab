"""What a client's calls would have cost as they are is told from our own book of keys as the provider would have counted it."""
from __future__ import annotations

from random import Random

import orjson
import pytest

from benchmarks.prefix import prices_of, wire_body
from benchmarks.prefix_alone import untouched
from benchmarks.prefix_traffic import traffic
from benchmarks.providers.rules import PROVIDERS
from gateway.planner import Backend
from gateway.planner.choice import Rates
from gateway.planner.habit import of_habit
from tests.planner.test_losses import GAPS, ONE_SHOT, PLAIN, Family, file
from tests.planner.test_planner import ASKER, MODELS, page, planner, rules_of


@pytest.mark.parametrize(("provider", "total", "read", "cost"), [
    ("openai", 2_000, 0, 2_500), ("openai", 2_000, 1_600, 660), ("openai", 900, 0, 900), ("qwen", 2_000, 1_000, 1_200),
])  # fmt: skip
def test_what_the_habit_costs(provider: str, total: int, read: int, cost: float) -> None:
    """OpenAI 5.6 writes each end for 1.25 and reads for 0.1, from 1,024 tokens on; Qwen writes for nothing and reads for 0.2."""
    rules = rules_of(provider, MODELS[provider], "openai_chat")
    assert rules is not None
    assert of_habit(rules, Rates(0.1, (1.25,), 0.2 if provider == "qwen" else None), total, read) == pytest.approx(cost)


@pytest.mark.parametrize("family", [PLAIN, GAPS, ONE_SHOT], ids=lambda family: family.name)
@pytest.mark.parametrize("provider", ["openai-5.6", "kimi"])
@pytest.mark.parametrize("seed", [12, 37])
def test_it_is_what_the_provider_counts_untouched(provider: str, family: Family, seed: int) -> None:
    """Conversations that share their tools: no mark may stand behind those, but caches that need none find them all the same."""
    at, one, habit = PROVIDERS[provider], planner(), 0.0
    timed = traffic(family, file(Random(seed), 4))
    bodies = [(each.at_s, wire_body(at, each.body, family)) for each in timed]
    backend = Backend(at.priced_as or "", at.model, None, at.name)
    for at_s, raw in bodies:
        found = one.plan(page(orjson.dumps({**orjson.loads(raw), "model": at.model}), "openai_chat"), ASKER, backend, int(at_s * 1e6))
        if found is None or found.stake is None:
            pytest.skip("a file of short prompts")
        habit += found.stake.habit
    assert habit == pytest.approx(untouched(at, bodies, prices_of(at)), rel=0.05)
