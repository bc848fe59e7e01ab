"""The table of what can be planned, against the simulated providers' own numbers."""
from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from benchmarks.providers.rules import ANTHROPIC_MINIMUM, BEDROCK_MINIMUM
from gateway.planner.caches import rules_of
from gateway.planner.reuse import EDGES_S


@pytest.mark.parametrize("model", [
    "claude-opus-5-5", "claude-fable-5-1", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6", "claude-sonnet-4-6", "claude-sonnet-5-5",
    "claude-haiku-4-5", "claude-haiku-3-5", "claude-opus-4-1",
])  # fmt: skip
def test_minima_are_the_providers(model: str) -> None:
    for provider, table in (("anthropic", ANTHROPIC_MINIMUM), ("bedrock", BEDROCK_MINIMUM)):
        rules = rules_of(provider, model, "anthropic_messages")
        assert rules is not None
        assert rules.minimum_tokens == next(least for pattern, least in table if fnmatchcase(model, pattern))


@pytest.mark.parametrize(("provider", "model", "dialect", "what"), [
    ("openai", "gpt-5.5", "openai_chat", (None, True)), ("openai", "gpt-5.6-sol", "openai_chat", ("prompt_cache_breakpoint", True)),
    ("openai", "gpt-6.1-terra", "openai_responses", ("prompt_cache_breakpoint", True)), ("qwen", "qwen3.7-max", "openai_chat", ("cache_control", False)),
    ("bedrock", "us.anthropic.claude-opus-5-5", "anthropic_messages", ("cache_control", False)), ("mistral", "mistral-large-4", "openai_chat", (None, True)),
    ("kimi", "kimi-k3", "openai_chat", (None, False)),
])  # fmt: skip
def test_who_can_be_asked_for_what(provider: str, model: str, dialect: str, what: tuple[str | None, bool]) -> None:
    rules = rules_of(provider, model, dialect)
    assert rules is not None
    assert (rules.mark, rules.key) == what
    assert set(rules.lives.values()) <= set(EDGES_S)
