"""Two sets of policies over the same traffic and the same luck: what would have come of it."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from router_policies.files import PolicySet
from router_policies.policy import decide
from router_policies.sensitivity import Learnt
from router_policies.simulate import Choice, Reality, Recorded, Router, World
from router_policies.tally import Tally
from router_policies.types import Ask, ForecastOf, Lane

WARM_UP_S = 3_600.0  # what a part of a trace lives through before it counts: as long as any cache of the example lanes holds
_LEAST_CALLS = 1_000  # of a part
_TOLD = 5_000  # calls between two words of progress


def router(policies: PolicySet, learnt: Learnt | None = None) -> Router:
    """The decision of the gateway."""

    def route(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        decision = decide(policies.for_team(ask.team), ask, lanes, learnt, forecast, worded=False)
        if not decision.ranked:
            return Choice(None, decision.klass)
        best = decision.ranked[0]
        return Choice(best.lane, decision.klass, best.expected_cost_usd, best.expected_wait_s)

    return route


class Part(NamedTuple):
    """Calls of a trace by number: those from `start` to `end` count, those from `warm` on fill queues and caches before."""

    warm: int = 0
    start: int = 0
    end: int = sys.maxsize


WHOLE = Part()


def parts(at_s: Sequence[float], count: int, warm_up_s: float = WARM_UP_S) -> list[Part]:
    """Cuts a trace (the times of its calls, in order) into so many parts of as many calls, or fewer where it is short."""
    count = max(min(count, len(at_s) // _LEAST_CALLS), 1)
    starts = [len(at_s) * n // count for n in range(count + 1)]
    return [
        Part(bisect_left(at_s, at_s[start] - warm_up_s) if start else 0, start, end) for start, end in pairwise(starts)
    ]  # fmt: skip


def run(
    route: Router, calls: Iterable[Recorded], lanes: Iterable[Reality], seed: int = 0,
    progress: Callable[[int], object] | None = None, part: Part = WHOLE,
) -> Tally:  # fmt: skip
    """Sends calls through a router: those from `part.warm` on. Each call's luck is its own, whatever part it is in. `progress`
    is told how many more are done, now and then."""
    tally = Tally()
    class_name = ""

    def named(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        nonlocal class_name
        choice = route(ask, lanes, forecast)
        class_name = choice.klass.name
        return choice

    done = 0
    for number, (call, served) in enumerate(World(lanes, seed, part.warm).run(calls, named), part.warm):
        if number < part.start:
            continue
        tally.add(call, served, class_name)
        done += 1
        if progress is not None and done % _TOLD == 0:
            progress(_TOLD)
    return tally
