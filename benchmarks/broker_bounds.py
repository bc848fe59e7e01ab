"""Dollars and value of waiting below which no router can go, for the same calls on the same lanes.

A bound knows every length, outage, pace and price beforehand. What limits it is the own pool: a second of a slot serves one
call, and no call before it came or after its deadline. Slots are filled with those calls first that gain most by a second of
them, in windows of time that calls reach over (a greedy choice, which is the best one for such windows).
"""
from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from router_policies.presets import default_policy
from router_policies.rules import Klass, Policy
from router_policies.scorers import filled, miss_chance
from router_policies.sensitivity import classify
from router_policies.simulate import Cache, Reality, Recorded, alone_s, misses
from router_policies.types import Ask, Lane, Terms

_NO_POLICY = default_policy()
_WINDOWS = 120


def bound(
    policy: Policy, calls: Sequence[Recorded], lanes: Sequence[Reality], allowed: int, seed: int, *, luck: bool,
    held: Sequence[Mapping[str, int]] | None = None,
) -> float:  # fmt: skip
    """With `luck` it also knows each wait and puts its `allowed` misses where they save most; without, it keeps the policy's
    epsilon by true distributions. Each cache holds what any call wrote within its lifetime, whichever lane that took. With
    `held` (tokens by lane, for each call) it holds that: then it is no bound of all routers, but of what this run could
    choose."""
    rng, caches = random.Random(seed), {lane.pool or lane.backend: Cache(lane.cache_ttl_s, None) for lane in lanes}
    slots = _Slots(sum(lane.slots or 0 for lane in lanes), calls[0].at_s, calls[-1].at_s)
    total, by_missing = 0.0, []
    for number, call in enumerate(calls):
        klass = classify(policy, Ask(team=call.team, model=call.model, wished_class=call.wished_class)).klass
        draws = (rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0))
        if held is None:
            by_pool = {pool: cache.tokens(call, call.at_s) for pool, cache in caches.items()}
            for cache in caches.values():
                cache.use(call, call.at_s)
            cached = {lane.key: by_pool[lane.pool or lane.backend] for lane in lanes}
        else:
            cached = dict(held[number])
        options = [
            (*_alone(call, lane, cached.get(lane.key, 0), klass, draws if luck else None), lane.slots is not None)
            for lane in lanes if not any(start <= call.at_s < end for start, end in lane.outages)
        ]  # fmt: skip
        in_time = [dear for dear, _, late, own in options if not own and not late]
        cheapest = min(dear for dear, *_ in options)
        # Where no lane is in time, the policy takes the surest; the bound takes the cheapest all the same.
        best = min(in_time) if in_time else cheapest
        total += best
        allowed -= not in_time
        by_missing.append(best - cheapest)
        for dear, busy_s, late, own in options:
            if own and not late and dear < best:
                slots.wanted(best - dear, busy_s, call.at_s, _latest(klass, busy_s))
    return total - slots.gain() - (sum(sorted(by_missing, reverse=True)[: max(allowed, 0)]) if luck else 0.0)


def _latest(klass: Klass, busy_s: float) -> float | None:
    """Seconds after its coming until which a call may be in a slot; None: any time."""
    first, whole = klass.first_token_deadline_ms, klass.total_deadline_ms
    ends = [*([] if first is None else [first / 1e3 + busy_s]), *([] if whole is None else [whole / 1e3])]
    return min(ends, default=None)


class _Slots:
    """Seconds of slots in windows of time, and who wants them."""

    def __init__(self, slots: int, start_s: float, end_s: float) -> None:
        self._start_s, self._width_s = start_s, (end_s - start_s) / _WINDOWS or 1.0
        first, last = np.indices((_WINDOWS, _WINDOWS))
        # Left for the calls that fit between two windows and reach no further.
        self._left = np.where(last >= first, (last - first + 1) * self._width_s * slots, np.inf)
        self._wishes: list[tuple[float, float, int, int]] = []

    def wanted(self, gain: float, busy_s: float, from_s: float, within_s: float | None) -> None:
        until_s = np.inf if within_s is None else from_s + within_s
        self._wishes.append((gain / busy_s, busy_s, self._window(from_s), self._window(until_s)))

    def gain(self) -> float:
        """Dollars, the dearest seconds first; a call may be taken in part."""
        total = 0.0
        for rate, busy_s, first, last in sorted(self._wishes, reverse=True):
            taken = min(busy_s, float(self._left[: first + 1, last:].min()))
            if taken > 0.0:
                self._left[: first + 1, last:] -= taken
                total += rate * taken
        return total

    def _window(self, at_s: float) -> int:
        return int(min((at_s - self._start_s) / self._width_s, _WINDOWS - 1))


def _alone(
    call: Recorded, lane: Reality, cached: int, klass: Klass, draws: tuple[float, float] | None
) -> tuple[float, float, bool]:
    """Dollars with the value of waiting, seconds of a slot, and whether the lane, all its own, is too late or too likely so."""
    cached = cached if cached >= lane.cache_minimum else 0
    uncached = call.prompt_tokens - cached
    prices = next((rates for at, rates in reversed(lane.prices) if at <= call.at_s), lane.rates)
    slow = next((factor for at, factor in reversed(lane.paces) if at <= call.at_s), 1.0)
    r_uncached, r_cached, _, r_output = filled(prices[call.model], None)
    cost = uncached * r_uncached + cached * r_cached + call.output_tokens * r_output
    if draws is not None:
        first, rest = alone_s(lane, uncached, call.output_tokens, *draws, slow)
        return cost + klass.value_usd_per_s * (first + rest), first + rest, misses(klass, first, first + rest)
    first = (lane.first_token_s + uncached * lane.prefill_s_per_token) * slow
    rest = call.output_tokens * lane.seconds_per_output_token * slow
    ask = Ask(team=call.team, model=call.model, prompt_tokens=call.prompt_tokens)
    view = Lane(key=lane.key, backend=lane.backend, name=lane.name, models={}, spread=lane.spread, pace_spread=lane.spread / 2,
                seconds_per_output_token=lane.seconds_per_output_token * slow)  # fmt: skip
    seconds = [None if ms is None else ms / 1e3 for ms in (klass.first_token_deadline_ms, klass.total_deadline_ms)]
    terms = Terms(policy=_NO_POLICY, klass=klass, model=call.model, value_usd_per_s=0.0, output_tokens=call.output_tokens,
                  output_spread=0.0, first_token_deadline_s=seconds[0], total_deadline_s=seconds[1])  # fmt: skip
    late = miss_chance(ask, view, terms, first) > klass.epsilon
    return cost + klass.value_usd_per_s * (first + rest), first + rest, late
