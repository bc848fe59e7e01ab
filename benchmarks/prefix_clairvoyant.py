"""A plan that knows all requests to come and keeps the provider's rules: what perfect foresight is worth.

The bound (`prefix_oracle`) prices each piece of prompt by itself, as if a request could store any set of them, each for a
time of its own. Here the same choices become what a request can ask for: at most four marks, where marks may stand, long
lifetimes first; marks or the automatic cache, not both (Qwen); one lifetime for all that a request writes (Kimi). The
simulated cache of the provider counts the cost, and nothing is readable before its answer has begun.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from benchmarks.prefix_oracle import Prices, cost_of, plan_of
from benchmarks.providers.automatic import AutomaticCache
from benchmarks.providers.breakpoints import LIFETIMES_S, BreakpointCache
from benchmarks.providers.marked import MarkedCache, MarkRules, Used
from benchmarks.providers.prompt import Prompt

Prompts = Sequence[tuple[float, Prompt]]
_AHEAD = 64
"""How many of the next requests of a piece are looked at for one that parts from this prompt behind it."""
_HORIZON_S = 43_200.0
_PASSES = 2
_MOST_BYTES = 1_000_000_000
"""Where requests are moved one by one, so many bytes of prompts are served a pass, about; where that would be more, neighbours
are moved together."""


class Marks(Protocol):
    """A provider's cache as its marks see it."""

    lives: Mapping[str, float]
    minimum: int
    most_marks: int

    def holds(self, digest: bytes, at_s: float) -> bool: ...

    def serve(self, prompt: Prompt, at_s: float) -> Used: ...


class Marked:
    """Anthropic's kind of marks."""

    def __init__(self, rules: MarkRules) -> None:
        self.lives, self.minimum, self.most_marks = rules.ttls, rules.minimum, rules.most_marks
        self._cache = MarkedCache(rules)

    def holds(self, digest: bytes, at_s: float) -> bool:
        return self._cache.holds("", digest, at_s)

    def serve(self, prompt: Prompt, at_s: float) -> Used:
        return self._cache.serve("", prompt, at_s)


class Breakpoints:
    """OpenAI's from 5.6 on: a mark at the end is the implicit one."""

    lives: Mapping[str, float] = {"30m": LIFETIMES_S["30m"]}
    minimum, most_marks = 1024, 4

    def __init__(self) -> None:
        self._cache = BreakpointCache()

    def holds(self, digest: bytes, at_s: float) -> bool:
        return self._cache.holds("", digest, at_s)

    def serve(self, prompt: Prompt, at_s: float) -> Used:
        *before, last = prompt.blocks
        if last.mark is None:
            return self._cache.serve("", prompt, at_s, {"prompt_cache_options": {"mode": "explicit"}})
        return self._cache.serve("", Prompt((*before, replace(last, mark=None))), at_s, {})


@dataclass(slots=True)
class _Coming:
    """Of one piece: the requests still to come, the next one last: when, and by which piece they go on."""

    rows: list[tuple[float, bytes]] = field(default_factory=list)


def by_marks(prompts: Prompts, prices: Prices, cache: Marks, begins_s: float = 0.0) -> float:
    """Cost in uncached input tokens; `prompts` are (seconds, prompt) in order of time, `begins_s` is from a request to its
    first token."""
    stored = plan_of(prompts, prices)
    names = {life_s: name for name, life_s in cache.lives.items()}
    coming: dict[bytes, _Coming] = {}
    for at_s, prompt in reversed(prompts):
        for digest, following in _pairs(prompt):
            coming.setdefault(digest, _Coming()).rows.append((at_s, following))
    total = 0.0
    for (at_s, prompt), lives in zip(prompts, stored, strict=True):
        marks = _marks(at_s, prompt, lives, coming, cache)
        blocks = tuple(replace(each, mark=names[marks[n]] if n in marks else None) for n, each in enumerate(prompt.blocks))
        used = cache.serve(Prompt(blocks), at_s)
        used.begun(at_s + begins_s)
        total += cost_of(used, prices, cache.lives)
    return total


def either(prompts: Prompts, sessions: Sequence[int], explicit: Callable[[Prompts], float],
           automatic: Callable[[Prompts], float]) -> float:  # fmt: skip
    """Each session by marks or by the automatic cache, whatever is cheapest in the end; the two share nothing."""

    def cost(marked: frozenset[int]) -> float:
        pairs = list(zip(prompts, sessions, strict=True))
        return explicit([one for one, session in pairs if session in marked]) + automatic(
            [one for one, session in pairs if session not in marked]
        )

    every = frozenset(sessions)
    return min(_descent(start, [[one] for one in sorted(every)], cost) for start in (every, frozenset[int]()))


def by_lifetime(prompts: Prompts, prices: Prices, lives: Mapping[str, float], make: Callable[[], AutomaticCache]) -> float:
    """A provider that stores everything and lets a request choose for how long (Kimi)."""
    short, long = lives

    def cost(kept_long: frozenset[int]) -> float:
        cache, total = make(), 0.0
        for number, (at_s, prompt) in enumerate(prompts):
            ttl = long if number in kept_long else short
            used = cache.serve("", prompt, at_s, {"prompt_cache_options": {"ttl": ttl}})
            used.begun(at_s)
            total += cost_of(used, prices, lives)
        return total

    many = len(prompts)
    whole = sum(len(prompt.text) for _, prompt in prompts)
    together = max(many * whole // _MOST_BYTES, 1)
    return _descent(frozenset(), [range(start, min(start + together, many)) for start in range(0, many, together)], cost)


def automatically(prompts: Prompts, prices: Prices, cache: AutomaticCache) -> float:
    """Nothing is asked for."""
    total = 0.0
    for at_s, prompt in prompts:
        used = cache.serve("", prompt, at_s, {})
        used.begun(at_s)
        total += cost_of(used, prices, {})
    return total


def _descent(start: frozenset[int], groups: Sequence[Iterable[int]], cost: Callable[[frozenset[int]], float]) -> float:
    """Moves one group in or out as long as that is cheaper."""
    best, least = start, cost(start)
    for _ in range(_PASSES):
        before = least
        for group in groups:
            other = best ^ frozenset(group)
            found = cost(other)
            if found < least:
                best, least = other, found
        if least == before:
            break
    return least


def _pairs(prompt: Prompt) -> list[tuple[bytes, bytes]]:
    digests = [block.digest for block in prompt.blocks]
    return list(zip(digests, [*digests[1:], b"end"], strict=True))


def _marks(
    at_s: float, prompt: Prompt, lives: Sequence[float], coming: Mapping[bytes, _Coming], cache: Marks
) -> dict[int, float]:
    """Place -> lifetime: what is held and read, and where requests to come part from this prompt, the longest ones first."""
    blocks = prompt.blocks
    held = max((n for n, block in enumerate(blocks) if cache.holds(block.digest, at_s)), default=-1)
    chosen: dict[int, float] = {}
    for index, (digest, following) in reversed(list(enumerate(_pairs(prompt)))):
        rows = coming[digest].rows
        rows.pop()
        parts = any(by != following for at, by in rows[-_AHEAD:] if at - at_s < _HORIZON_S)
        if lives[index] and parts and blocks[index].tokens >= cache.minimum and _may(prompt, index):
            chosen[index] = lives[index]
    first = [held] if held >= 0 else []
    kept = [*first, *(index for index in sorted(chosen, reverse=True) if index != held)][: cache.most_marks]
    marks: dict[int, float] = {}
    longest = min(cache.lives.values())
    for index in sorted(kept, reverse=True):
        longest = marks[index] = max(longest, chosen.get(index, 0.0))
    return marks


def _may(prompt: Prompt, index: int) -> bool:
    return prompt.blocks[index].markable or index == len(prompt.blocks) - 1
