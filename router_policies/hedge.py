"""Whether and when a second lane is asked beside the first: by the same sum as every decision.

While the first lane says nothing, its remaining wait is drawn again from what is left of its log-normal: the longer the
silence, the longer it is likely to go on. A second lane is worth asking as soon as

    value of a second x saved wait + price of a missed deadline x saved chance to miss  >  what the second attempt costs

which is reckoned whole, though the loser is cancelled: what a provider makes before it notices is billed. The class pays: it
has no hedges unless its policy says so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from router_policies.rules import Klass
from router_policies.types import Decision, Ranked

_STEPS, _STRIDE = 8, 1.6  # silences that are looked at, from half the expected wait on
_GRID = 16  # points of an integral
_CANDIDATES = 2  # lanes behind the first that are looked at
_RARE = 1e-3  # silences that are rarer are not looked at
_ROOT_2 = math.sqrt(2)
_LEAST_USD = 1e-12


class Hedge(NamedTuple):
    """Ask `second` if the first lane has been silent for `after_s`; the figures are dollars as they are expected then."""

    second: Ranked
    after_s: float
    gain_usd: float
    cost_usd: float


def hedge(decision: Decision, first: Ranked, *, stream: bool, siblings: int = 0) -> Hedge | None:
    """The earliest worthwhile hedge of an attempt at `first`, or None. `siblings`: as in `Ask`."""
    klass = decision.klass
    if not klass.hedge or not 0.0 < first.expected_wait_s < math.inf:
        return None
    value = klass.value_usd_per_s / (1 + siblings)
    others = [one for one in decision.ranked if one.lane.key != first.lane.key and one.model == first.model]
    found = [_against(first, one, klass, decision.deadline_ms, stream, value) for one in others[:_CANDIDATES]]
    return min((each for each in found if each is not None), key=lambda each: each.after_s, default=None)


def _against(
    first: Ranked, second: Ranked, klass: Klass, deadline_ms: float | None, stream: bool, value: float
) -> Hedge | None:
    a, b = _Wait.of(first, stream), _Wait.of(second, stream)
    if not (a.mean_s > 0.0 and 0.0 < b.mean_s < math.inf):
        return None
    most_s = a.mean_s * math.exp(3.0 * a.sigma) + max(a.rest_s - b.rest_s, 0.0)
    if value * most_s + klass.missed_deadline_usd <= second.expected_cost_usd:
        return None
    limits = [(klass.first_token_deadline_ms, 0.0), (deadline_ms, 1.0)]
    deadlines = [(ms / 1e3, rest) for ms, rest in limits if ms is not None]
    for step in range(_STEPS):
        silent_s = a.mean_s * 0.5 * _STRIDE**step
        if deadlines and silent_s > max(seconds for seconds, _ in deadlines):
            break
        alive = a.over(silent_s)
        if alive < _RARE:
            break
        left_s, both_s, second_first = _waits(a, b, silent_s, alive)
        saved_s = left_s - both_s + second_first * (a.rest_s - b.rest_s)
        risk = 0.0
        for seconds, rest in deadlines:
            alone = a.over(max(seconds - rest * a.rest_s, silent_s)) / alive
            risk = max(risk, alone * (1.0 - b.over(max(seconds - silent_s - rest * b.rest_s, 0.0))))
        gain = value * saved_s + klass.missed_deadline_usd * risk
        if gain > max(second.expected_cost_usd, _LEAST_USD):
            return Hedge(second, silent_s, gain, second.expected_cost_usd)
    return None


class _Wait(NamedTuple):
    """When a lane shows that it answers: a log-normal, and what comes after it."""

    mean_s: float
    sigma: float
    rest_s: float

    @staticmethod
    def of(one: Ranked, stream: bool) -> _Wait:
        """Of a stream that is its first token, of any other answer all of it."""
        if stream:
            return _Wait(one.first_token_s, max(one.lane.spread, 0.05), max(one.expected_wait_s - one.first_token_s, 0.0))
        pace = one.lane.spread if one.lane.pace_spread is None else one.lane.pace_spread
        sigma = math.hypot(one.first_token_s * one.lane.spread, (one.expected_wait_s - one.first_token_s) * pace)
        return _Wait(one.expected_wait_s, max(sigma / one.expected_wait_s, 0.05), 0.0)

    def over(self, seconds: float) -> float:
        """P(wait > seconds)."""
        if seconds <= 0.0:
            return 1.0
        return 0.5 * math.erfc((math.log(seconds / self.mean_s) / self.sigma + self.sigma / 2) / _ROOT_2)


def _waits(a: _Wait, b: _Wait, silent_s: float, alive: float) -> tuple[float, float, float]:
    """Expected seconds from now on: of the first lane alone, of whichever is first, and P(the second is first)."""
    end = max(silent_s, a.mean_s) * math.exp(3.0 * a.sigma)
    left = both = second_first = 0.0
    at, before_a, before_b = 0.0, 1.0, 1.0
    for n in range(1, _GRID + 1):
        then = end * (n / _GRID) ** 2  # points lie closer where more happens
        now_a, now_b = a.over(silent_s + then) / alive, b.over(then)
        middle_a, width = (before_a + now_a) / 2, then - at
        left += middle_a * width
        both += middle_a * (before_b + now_b) / 2 * width
        second_first += middle_a * (before_b - now_b)
        at, before_a, before_b = then, now_a, now_b
    return left, both, min(second_first, 1.0)


def said(found: Hedge, first: Ranked) -> str:
    """For the ledger: why the second attempt was made."""
    return (
        f"hedge: {first.lane.key} was silent for {found.after_s:.2g} s; asking {found.second.lane.key} too is worth "
        f"{found.gain_usd:.2g} USD and costs {found.cost_usd:.2g}"
    )

