"""What a provider's prompt cache lets a request ask for: the table that says whether there is anything to plan.

`marks` are places in the prompt up to which the provider stores it; `lifetime` is a field of the request that says how long;
where there is neither, all that can be asked for is to be sent to the machine that has the prefix (`prompt_cache_key`). Facts
and sources: docs/caching.md. A provider that is not in the table has nothing to plan, and its calls cost nothing here.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

MARK, BREAKPOINT = "cache_control", "prompt_cache_breakpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """One provider's, for one family of models."""

    mark: str | None = None
    """The member of a block that marks it."""
    lives: Mapping[str, float]
    """Lifetimes that can be asked for, seconds, the short one (the default) first; at most two."""
    minimum_tokens: int = 1024
    step_tokens: int = 1
    """What needs no mark is stored and found in whole steps."""
    most_marks: int = 4
    lookback: int = 20
    """Positions before a mark where it finds an entry by itself."""
    ends_are_marked: bool = False
    """The provider writes the end of each prompt unless it is told not to (OpenAI 5.6)."""
    automatic_read: bool = False
    """A request without marks is cached all the same, at a read price of its own (Qwen)."""
    explicit_tier: str | None = None
    """Tier of the price rows for requests with marks."""
    lifetime_field: str | None = None
    """Top-level object with a member `ttl`, where the lifetime is all that can be asked for (Kimi)."""
    key: bool = False
    """Whether `prompt_cache_key` chooses the machine."""
    silent: bool = False
    """Whether it answers a request for no output, which reads and renews what is stored."""
    objects: bool = False
    """Whether a beginning can be stored as an object, for rent by the hour (Gemini)."""
    writes_wait: bool = False
    """An entry is readable only once the answer that wrote it has begun: a burst of first calls all pay for it."""


@dataclass(frozen=True, slots=True)
class _Row:
    providers: tuple[str, ...]
    models: tuple[str, ...]
    dialects: tuple[str, ...]
    rules: CacheRules


_HOSTS_OF_CLAUDE = ("anthropic", "bedrock", "aws", "vertex", "foundry")
_MINUTES = {"5m": 300.0, "1h": 3600.0}


def _claude(minimum: int, *models: str, providers: tuple[str, ...] = _HOSTS_OF_CLAUDE) -> _Row:
    rules = CacheRules(mark=MARK, lives=_MINUTES, minimum_tokens=minimum, writes_wait=True, silent=True)
    return _Row(providers, models, ("anthropic_messages",), rules)


_TABLE = (
    _claude(4096, "*opus-4-7*", providers=("bedrock", "aws")),
    _claude(512, "*opus-5*", "*fable-5*", "*mythos-5*"),
    _claude(2048, "*opus-4-7*", "*mythos-preview*", "*haiku-3-5*"),
    _claude(4096, "*opus-4-6*", "*opus-4-5*", "*haiku-4-5*"),
    _claude(1024, "*claude*"),
    _Row(("openai", "azure"), ("gpt-5.6*", "gpt-6*"), ("openai_chat",), CacheRules(
        mark=BREAKPOINT, lives={"30m": 1800.0}, lookback=50, ends_are_marked=True, key=True, writes_wait=True)),
    _Row(("openai", "azure"), ("gpt-5.6*", "gpt-6*"), ("openai_responses",), CacheRules(
        mark=BREAKPOINT, lives={"30m": 1800.0, "12h": 43_200.0}, lookback=50, ends_are_marked=True, key=True,
        writes_wait=True)),
    _Row(("openai", "azure", "mistral", "fireworks"), ("*",), ("openai_chat", "openai_responses"), CacheRules(
        lives={"auto": 600.0}, key=True, writes_wait=True)),
    _Row(("x-ai", "xai"), ("*",), ("openai_responses",), CacheRules(lives={"auto": 600.0}, key=True)),
    _Row(("google", "gemini"), ("gemini-4*",), ("openai_chat",), CacheRules(
        lives={"auto": 300.0}, minimum_tokens=4096, writes_wait=True)),
    _Row(("google", "gemini"), ("gemini-3*",), ("openai_chat",), CacheRules(
        lives={"auto": 300.0}, minimum_tokens=4096, writes_wait=True, objects=True)),
    _Row(("google", "gemini"), ("gemini*",), ("openai_chat",), CacheRules(
        lives={"auto": 300.0}, minimum_tokens=2048, writes_wait=True, objects=True)),
    _Row(("qwen", "dashscope"), ("*",), ("openai_chat",), CacheRules(
        mark=MARK, lives={"5m": 300.0}, automatic_read=True, explicit_tier="explicit", writes_wait=True,
        step_tokens=128)),
    _Row(("moonshot", "moonshotai", "kimi"), ("kimi-k3*",), ("openai_chat",), CacheRules(
        lives=_MINUTES, minimum_tokens=256, step_tokens=256, lifetime_field="prompt_cache_options", writes_wait=True)),
)  # fmt: skip
"""The first row that fits counts."""


@cache
def rules_of(provider: str, model: str, dialect: str) -> CacheRules | None:
    """What can be planned for calls to this model in this dialect; None: nothing."""
    name = model.lower().rpartition("/")[2]
    for row in _TABLE:
        if provider in row.providers and dialect in row.dialects and any(fnmatchcase(name, glob) for glob in row.models):
            return row.rules
    return None
