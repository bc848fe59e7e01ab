"""Up to where to store a prompt, and for how long: the plan of least expected cost.

The prompt is cut into segments at the places where a mark may stand. A segment's tokens will be asked for again with every
call that shares them, so what counts is the mean cost per call: `w * (1 - P) + r * P` of the input price with a lifetime
whose write costs w and within which the next call comes with chance P, and 1 (or what an automatic cache makes of it)
without. Everything before the last mark is stored, and what is stored for long stands before what is stored for short, so
there are only two numbers to choose.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLEARLY = 0.9
"""How much better than what the provider does by itself a plan has to be: chances are estimates, what it has may be lost."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in terms of the uncached input token's."""

    read: float
    writes: tuple[float, ...]
    """Per lifetime, the short one first."""
    automatic_read: float | None = None
    """Of a cache that works for prompts without marks."""
    input_usd: float = 0.0
    """The uncached input token's price, dollars."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens between two places, and the chance that all of them are asked for again within each lifetime."""

    tokens: float
    chances: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Segments up to `last` are stored, those up to `last_long` for long; -1: none. `cost`: in uncached input tokens."""

    last: int
    last_long: int
    cost: float


def least(segments: Sequence[Segment], held: int, rates: Rates, least_last: int = -1) -> Choice:
    """The cheapest plan. Segments up to `held` are in the cache already; a mark before `least_last` would not be stored, so
    what
    stands there can only be read together with that segment."""
    if least_last > 0:
        together = segments[least_last].chances
        segments = [Segment(each.tokens, together) for each in segments[:least_last]] + list(segments[least_last:])
    bare = [segment.tokens * _bare(segment, rates) for segment in segments]
    best = Choice(-1, -1, sum(bare)) if held < 0 else None
    if best is not None and rates.automatic_read is not None:
        best = Choice(-1, -1, best.cost * CLEARLY)
    long = len(rates.writes) > 1
    for last in range(max(held, least_last, 0), len(segments)):
        tail = sum(bare[last + 1 :])
        if rates.automatic_read is not None:  # a prompt with marks is outside of the automatic cache
            tail = sum(segment.tokens for segment in segments[last + 1 :])
        for last_long in range(held, last + 1) if long else (-1,):
            cost = tail + _stored(segments, held, last, last_long, rates)
            weighed = cost / CLEARLY if last_long > held else cost
            if best is None or weighed < best.cost - 1e-9:
                best = Choice(last, last_long if last_long > held else -1, weighed)
    return best or Choice(held, -1, sum(bare))


def mean_cost(chance: float, write: float, read: float) -> float:
    """Per token and call, of a prefix that is always stored."""
    return write * (1 - chance) + read * chance


def _bare(segment: Segment, rates: Rates) -> float:
    return 1.0 if rates.automatic_read is None else mean_cost(segment.chances[0], 1.0, rates.automatic_read)


def _stored(segments: Sequence[Segment], held: int, last: int, last_long: int, rates: Rates) -> float:
    cost = 0.0
    for index, segment in enumerate(segments[: last + 1]):
        if index <= held:
            cost += segment.tokens * rates.read
        else:
            life = 1 if index <= last_long else 0
            cost += segment.tokens * mean_cost(segment.chances[life], rates.writes[life], rates.read)
    return cost
