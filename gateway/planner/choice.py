"""Up to where to store a prompt, and for how long: the plan of least expected cost.

The prompt is cut into segments at the places where a mark may stand. What counts for each is what its tokens will cost from
now on, as long as they go on being asked for: a write now, reads while they are found, a write anew when they were let go.
`to_go` is that sum, for chances that are one thing now (a conversation's first request) and another from the next call on
(a conversation under way). Everything before the last mark is stored, and what is stored for long stands before what is
stored for short, so there are only two numbers to choose.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

DOUBT, DOUBT_OF_SHARED = 2.0, 1.25
"""What the price of a long write is weighed with: it costs most, and rests on the chances of which least is known. What many
conversations share is surer than that one of them goes on."""
_MOST_EVER = 0.95


class Rates(msgspec.Struct, frozen=True):
    """Prices in terms of the uncached input token's."""

    read: float
    writes: tuple[float, ...]
    """Per lifetime, the short one first."""
    automatic_read: float | None = None
    """Of a cache that works for prompts without marks, as long as the short lifetime."""
    input_usd: float = 0.0
    """The uncached input token's price, dollars."""

    def weighed(self, doubt: float) -> tuple[float, ...]:
        """Writes, the long ones dearer by the doubt."""
        return (self.writes[0], *[write * doubt for write in self.writes[1:]])


class Odds(NamedTuple):
    """Chances that a prefix is asked for again: within each lifetime, and ever."""

    within: tuple[float, ...]
    ever: float


class Segment(NamedTuple):
    """The tokens between two places, and when all of them are asked for again: after this call, and after the next ones."""

    tokens: float
    now: Odds
    then: Odds
    doubt: float = DOUBT


class ToGo(NamedTuple):
    """Expected cost per token from this call on, as it is stored now; later calls do what is cheapest on average."""

    bare: float
    stored: tuple[float, ...]
    automatic: float


class Choice(msgspec.Struct, frozen=True):
    """Segments up to `last` are stored, those up to `last_long` for long; -1: none. `cost`: in uncached input tokens."""

    last: int
    last_long: int
    cost: float


def to_go(part: Segment, rates: Rates) -> ToGo:
    """For a segment that is not in the cache. Only lifetimes that have a price count."""
    now, then = part.now, part.then
    ever = min(then.ever, _MOST_EVER)
    writes = rates.weighed(part.doubt)
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


def least(segments: Sequence[Segment], held: int, rates: Rates, least_last: int = -1, *, held_long: bool = False,
          elsewhere: float = 0.0) -> Choice:
    """The cheapest plan. Segments up to `held` are in the cache already, `held_long`: for the long lifetime; a long mark
    behind them keeps them as long as itself; `elsewhere`: tokens that the automatic cache has. A mark before `least_last` would
    not be stored, so what stands there can only be read together with that segment."""
    if least_last > 0:
        together = segments[least_last]
        segments = [together._replace(tokens=each.tokens) for each in segments[:least_last]] + list(segments[least_last:])
    costs = [to_go(each, rates) for each in segments]
    sizes = [each.tokens for each in segments]
    best: Choice | None = None
    if held < 0 or rates.automatic_read is not None:
        unmarked = sum([size * cost.automatic for size, cost in zip(sizes, costs, strict=True)])
        if rates.automatic_read is not None:
            unmarked -= elsewhere * (1.0 - rates.automatic_read)
        best = Choice(-1, -1, unmarked)
    done = sum(sizes[: held + 1]) * rates.read
    longer = _longer(segments[: held + 1], costs, rates) if held >= 0 and not held_long else 0.0
    for last in range(max(held, least_last, 0), len(segments)):
        tail = done + sum([size * cost.bare for size, cost in zip(sizes[last + 1 :], costs[last + 1 :], strict=True)])
        for last_long in range(held, last + 1) if len(rates.writes) > 1 else (-1,):
            cost = tail - (longer if last_long > held else 0.0)
            for index in range(held + 1, last + 1):
                cost += sizes[index] * costs[index].stored[index <= last_long]
            if best is None or cost < best.cost - 1e-9:
                best = Choice(last, last_long if last_long > held else -1, cost)
    return best or Choice(held, -1, done)


def _longer(held: Sequence[Segment], costs: Sequence[ToGo], rates: Rates) -> float:
    """What it saves later that what is held lives long instead of short."""
    if len(rates.writes) < 2:
        return 0.0
    saved = 0.0
    for part, cost in zip(held, costs, strict=False):
        short, long = rates.weighed(part.doubt)[:2]
        saved += part.tokens * ((cost.stored[0] - short) - (cost.stored[1] - long))
    return saved
