"""Up to where to store a prompt, and for how long: the plan of least expected cost.

The prompt is cut into segments at the places where a mark may stand. What counts for each is what its tokens will cost from
now on, as long as they go on being asked for: a write now, reads while they are found, a write anew when they were let go.
`to_go` is that sum, for chances that are one thing now (a conversation's first request) and another from the next call on
(a conversation under way). Everything before the last mark is stored, and what is stored for long stands before what is
stored for short, so there are only two numbers to choose.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CLEARLY = 0.97
"""How much better than what the provider does by itself a plan has to be: chances are estimates, what it has may be lost."""
_DOUBT = 1.5
"""What the price of a long write is weighed with: it costs most, and rests on the chances of which least is known."""
_MOST_EVER = 0.95


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in terms of the uncached input token's."""

    read: float
    writes: tuple[float, ...]
    """Per lifetime, the short one first."""
    automatic_read: float | None = None
    """Of a cache that works for prompts without marks, as long as the short lifetime."""
    input_usd: float = 0.0
    """The uncached input token's price, dollars."""


class Odds(NamedTuple):
    """Chances that a prefix is asked for again: within each lifetime, and ever."""

    within: tuple[float, ...]
    ever: float


class Segment(NamedTuple):
    """The tokens between two places, and when all of them are asked for again: after this call, and after the next ones."""

    tokens: float
    now: Odds
    then: Odds


class ToGo(NamedTuple):
    """Expected cost per token from this call on, as it is stored now; later calls do what is cheapest on average."""

    bare: float
    stored: tuple[float, ...]
    automatic: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Segments up to `last` are stored, those up to `last_long` for long; -1: none. `cost`: in uncached input tokens."""

    last: int
    last_long: int
    cost: float


def to_go(now: Odds, then: Odds, rates: Rates) -> ToGo:
    """For a segment that is not in the cache. Only lifetimes that have a price count."""
    ever = min(then.ever, _MOST_EVER)
    writes = [rates.writes[0], *[write * _DOUBT for write in rates.writes[1:]]]
    forms = list(zip(writes, [rates.read] * len(writes), now.within, then.within, strict=False))
    if rates.automatic_read is not None:
        forms.append((1.0, rates.automatic_read, now.within[0], then.within[0]))
    anew = min(1.0, *[write * (1 - min(chance, ever)) + read * min(chance, ever) for write, read, _, chance in forms])
    anew /= 1 - ever
    costs = []
    for write, read, first, later in forms:
        later = min(later, ever)
        on = (later * read + (ever - later) * anew) / (1 - later)
        costs.append(write + first * (read + on) + (now.ever - first) * anew)
    bare = 1.0 + now.ever * anew
    return ToGo(bare, tuple(costs[: len(rates.writes)]), bare if rates.automatic_read is None else costs[-1])


def least(segments: Sequence[Segment], held: int, rates: Rates, least_last: int = -1) -> Choice:
    """The cheapest plan. Segments up to `held` are in the cache already; a mark before `least_last` would not be stored, so
    what stands there can only be read together with that segment."""
    if least_last > 0:
        together = segments[least_last]
        segments = [together._replace(tokens=each.tokens) for each in segments[:least_last]] + list(segments[least_last:])
    costs = [to_go(each.now, each.then, rates) for each in segments]
    sizes = [each.tokens for each in segments]
    best: Choice | None = None
    if held < 0:
        unmarked = sum([size * cost.automatic for size, cost in zip(sizes, costs, strict=True)])
        best = Choice(-1, -1, unmarked * (1.0 if rates.automatic_read is None else CLEARLY))
    done = sum(sizes[: held + 1]) * rates.read
    for last in range(max(held, least_last, 0), len(segments)):
        tail = done + sum([size * cost.bare for size, cost in zip(sizes[last + 1 :], costs[last + 1 :], strict=True)])
        for last_long in range(held, last + 1) if len(rates.writes) > 1 else (-1,):
            cost = tail
            for index in range(held + 1, last + 1):
                cost += sizes[index] * costs[index].stored[index <= last_long]
            if best is None or cost < best.cost - 1e-9:
                best = Choice(last, last_long if last_long > held else -1, cost)
    return best or Choice(held, -1, done)
