"""Who is simulated: each provider's wire, models, cache and the form of its usage. Facts and sources: docs/caching.md."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from benchmarks.providers import prompt
from benchmarks.providers.automatic import AutomaticCache, AutomaticRules
from benchmarks.providers.breakpoints import BreakpointCache
from benchmarks.providers.marked import MarkedCache, MarkRules, Used
from benchmarks.providers.prompt import Prompt, Refused

FIVE_MINUTES_S, HOUR_S, DAY_S = 300.0, 3600.0, 86_400.0
ANTHROPIC_MINIMUM = (
    ("*opus-5*", 512), ("*fable-5*", 512), ("*mythos-5*", 512), ("*opus-4-7*", 2048), ("*mythos-preview*", 2048),
    ("*haiku-3-5*", 2048), ("*opus-4-6*", 4096), ("*opus-4-5*", 4096), ("*haiku-4-5*", 4096), ("*", 1024),
)  # fmt: skip
BEDROCK_MINIMUM = (("*opus-4-7*", 4096), *ANTHROPIC_MINIMUM)


class Cache(Protocol):
    """Counts one prompt of an isolation domain and stores what the rules say. Raises `Refused`."""

    def serve(self, domain: str, body: Mapping[str, Any], at_s: float) -> Used: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One provider as the gateway's settings and the price book know it."""

    name: str
    wire: str
    """`openai` or `anthropic`."""
    model: str
    """The one that benchmarks use."""
    make: Callable[[], Cache]
    priced_as: str | None = None
    """Its name in the price book; None: not in it."""
    lives: Mapping[str, float] = field(default_factory=dict)
    """Lifetimes that a request can ask for, seconds, by their names in usage."""
    automatic_s: float | None = None
    """How long the cache that needs no asking keeps a prefix after its last use; None: there is none."""
    units: int | None = None
    """Tokens in which prefixes are counted; None: by blocks."""
    minimum: int = 1024


@dataclass(slots=True)
class Anthropic:
    """Also Bedrock's native road, which has no automatic mark (`top_level` False)."""

    minimum: tuple[tuple[str, int], ...] = ANTHROPIC_MINIMUM
    top_level: bool = True
    _caches: dict[int, MarkedCache] = field(default_factory=dict)

    def serve(self, domain: str, body: Mapping[str, Any], at_s: float) -> Used:
        least = next(n for pattern, n in self.minimum if fnmatchcase(body["model"], pattern))
        cache = self._caches.setdefault(least, MarkedCache(MarkRules(ttls={"5m": FIVE_MINUTES_S, "1h": HOUR_S}, minimum=least)))
        return cache.serve(domain, self._rendered(body), at_s)

    def _rendered(self, body: Mapping[str, Any]) -> Prompt:
        automatic = body.get("cache_control")
        if automatic is None:
            return prompt.anthropic(body)
        if not self.top_level:
            raise Refused("cache_control: Extra inputs are not permitted")
        return _marked_at_the_end(prompt.anthropic(body), automatic.get("ttl") or "default")


def _marked_at_the_end(rendered: Prompt, ttl: str) -> Prompt:
    """Anthropic's automatic mode: a mark on the last block, which takes one of the four."""
    last = rendered.blocks[-1]
    if last.mark is not None and last.mark != ttl:
        raise Refused("cache_control: the last block has a different ttl")
    if len(rendered.marked) >= 4 and last.mark is None:
        raise Refused("A maximum of 4 blocks with cache_control may be provided. Found 5.")
    end = prompt.Block(last.digest, last.tokens, ttl, last.position, last.layer)
    return Prompt((*rendered.blocks[:-1], end), rendered.text)


@dataclass(slots=True)
class OpenAI:
    """Both generations, told apart by the model's name."""

    automatic: AutomaticCache = field(default_factory=lambda: AutomaticCache(AutomaticRules(
        life_s=600.0, most_life_s=HOUR_S, units=128, minimum=1024, per_minute=15)))  # fmt: skip
    breakpoints: BreakpointCache = field(default_factory=BreakpointCache)

    def serve(self, domain: str, body: Mapping[str, Any], at_s: float) -> Used:
        rendered = prompt.openai(body)
        if has_breakpoints(body["model"]):
            return self.breakpoints.serve(domain, rendered, at_s, body)
        if "prompt_cache_options" in body or rendered.marked:
            raise Refused("Unknown parameter: 'prompt_cache_options'.")
        return self.automatic.serve(domain, rendered, at_s, body)


def has_breakpoints(model: str) -> bool:
    """GPT-5.6 and later."""
    return any(fnmatchcase(model, pattern) for pattern in ("gpt-5.6*", "gpt-6*"))


@dataclass(slots=True)
class Qwen:
    """Explicit where there is a mark, implicit where there is none: exclusive for a request, and two caches."""

    explicit: MarkedCache = field(default_factory=lambda: MarkedCache(MarkRules(ttls={"5m": FIVE_MINUTES_S})))
    implicit: AutomaticCache = field(default_factory=lambda: AutomaticCache(AutomaticRules(life_s=FIVE_MINUTES_S, units=128)))

    def serve(self, domain: str, body: Mapping[str, Any], at_s: float) -> Used:
        rendered = prompt.openai(body)
        if not rendered.marked:
            return self.implicit.serve(domain, rendered, at_s, body)
        used = self.explicit.serve(domain, rendered, at_s)
        used.explicit = True
        return used


@dataclass(slots=True)
class Automatic:
    """Any provider whose cache needs no asking."""

    cache: AutomaticCache

    def serve(self, domain: str, body: Mapping[str, Any], at_s: float) -> Used:
        return self.cache.serve(domain, prompt.openai(body), at_s, body)


def _kimi() -> Automatic:
    lives = {"5m": FIVE_MINUTES_S, "1h": HOUR_S}
    return Automatic(AutomaticCache(AutomaticRules(life_s=FIVE_MINUTES_S, units=256, minimum=256, paid_writes=lives)))


def _engine() -> Automatic:
    return Automatic(AutomaticCache(AutomaticRules(life_s=DAY_S, units=16, minimum=16, capacity_tokens=2_000_000)))


def _gemini() -> Automatic:
    return Automatic(AutomaticCache(AutomaticRules(life_s=FIVE_MINUTES_S, units=128, minimum=2048)))


_SHORT_AND_LONG = {"5m": FIVE_MINUTES_S, "1h": HOUR_S}
PROVIDERS: Mapping[str, Provider] = {
    each.name: each
    for each in (
        Provider(name="anthropic", wire="anthropic", model="claude-sonnet-4-6", make=Anthropic, priced_as="anthropic",
                 lives=_SHORT_AND_LONG),
        Provider(name="bedrock", wire="anthropic", model="anthropic.claude-opus-5-5",
                 make=lambda: Anthropic(BEDROCK_MINIMUM, top_level=False), priced_as="bedrock",
                 lives=_SHORT_AND_LONG, minimum=512),
        Provider(name="openai", wire="openai", model="gpt-5.5", make=OpenAI, priced_as="openai", automatic_s=600.0, units=128),
        Provider(name="openai-5.6", wire="openai", model="gpt-5.6-sol", make=OpenAI, priced_as="openai",
                 lives={"30m": 1800.0}),
        Provider(name="qwen", wire="openai", model="qwen3.7-max", make=Qwen, priced_as="qwen", lives={"5m": FIVE_MINUTES_S},
                 automatic_s=FIVE_MINUTES_S, units=128),
        Provider(name="kimi", wire="openai", model="kimi-k3", make=_kimi, priced_as="moonshot", lives=_SHORT_AND_LONG,
                 units=256, minimum=256),
        Provider(name="gemini", wire="openai", model="gemini-2.5-flash", make=_gemini, priced_as="google",
                 automatic_s=FIVE_MINUTES_S, units=128, minimum=2048),
        Provider(name="engine", wire="openai", model="own-model", make=_engine, automatic_s=DAY_S, units=16, minimum=16),
    )
}  # fmt: skip
