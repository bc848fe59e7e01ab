"""Lets one call of a burst write the prefix that all of it shares: the others wait until it can be read.

Who writes what is known within this process (`planner.cohorts`) and, where there are several, by one authority for all of
them: the house of the workers, or Redis. That is asked only by the first call of a process whose cold prefix is more than a
turn's own words, so that other calls pay nothing for it. A leader that fails frees the others: one of them leads anew, and if
that fails too, all go on.
"""
from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gateway.planner import Planned, Planner
from gateway.planner.cohorts import Ended, Leader
from gateway.planner.held import name_of
from gateway.planner.values import Stored
from router_policies.rules import Klass

_MOST_LEADERS = 2
"""How many leaders of one prefix may fail while a call waits for it."""
_SHARE = 0.5
"""Of the time until a call's deadline that it may wait."""
_numbers = itertools.count(1)


@asynccontextmanager
async def together(
    planner: Planner, planned: Planned, at_us: int, klass: Klass, most_wait_ms: float, deadline: float | None = None
) -> AsyncIterator[Callable[[], None]]:
    """Waits for calls that are writing a prefix of this one, as long as reading it is worth, then leads for what is left.
    Gives what to call when the answer begins. `deadline`: monotonic, seconds."""
    most_s = _most_s(klass, most_wait_ms, deadline) if planned.rules.writes_wait and planned.stored else 0.0
    own, number = await _Waiting(planner, planned, at_us, klass.value_usd_per_s, most_s).gathered()
    others = planner.others

    def begun() -> None:
        planner.begun(planned, at_us)
        planner.cohorts.begun(own)
        if number and others is not None:
            others.begun(number)

    try:
        yield begun
    finally:
        planner.cohorts.end(own)
        if number and others is not None:
            others.end(number)


@asynccontextmanager
async def claimed(planner: Planner, name: int) -> AsyncIterator[Callable[[], None] | None]:
    """The right to be the only one of all processes that writes that prefix, for as long as it lasts; None: somebody is writing
    it, or has just written it. Gives what to call when it can be read."""
    others, number = planner.others, next(_numbers)
    if planner.cohorts.writer(name) is not None:
        yield None
        return
    own = planner.cohorts.lead([name])

    def begun() -> None:
        planner.cohorts.begun(own)
        if others is not None:
            others.begun(number)

    try:
        elsewhere = others is not None and (await others.join(number, [(name, 0.0)])).at >= 0
        yield None if elsewhere else begun
    finally:
        planner.cohorts.end(own)
        if others is not None:
            others.end(number)


def _most_s(klass: Klass, most_wait_ms: float, deadline: float | None) -> float:
    """The longest wait that a call's class and deadline bear, whatever it saves."""
    bounds = [most_wait_ms / 1e3]
    if klass.first_token_deadline_ms is not None:
        bounds.append(_SHARE * klass.first_token_deadline_ms / 1e3)
    if deadline is not None:
        bounds.append(_SHARE * (deadline - time.monotonic()))
    return min(bounds)


class _Waiting:
    """One call before it is sent."""

    def __init__(self, planner: Planner, planned: Planned, at_us: int, value_usd_per_s: float, most_s: float) -> None:
        self._planner, self._planned, self._at_us = planner, planned, at_us
        self._value, self._most_s = value_usd_per_s, most_s
        self._since = time.monotonic()

    async def gathered(self) -> tuple[Leader, int]:
        """Waits until what others are writing can be read, or it has waited enough; then leads for what is left, in other
        processes under the number that comes with it (0: in this one alone)."""
        planner, planned, failed = self._planner, self._planned, 0
        while True:
            cold = planner.cold(planned, self._at_us)
            found = planner.writer(planned) if cold and failed < _MOST_LEADERS else None
            ended = "late" if found is None else await found[0].wait(self._worth_s(found[1]))
            if ended != "late":
                failed += ended == "gone"
                continue
            own, number = planner.lead(planned, self._at_us), 0
            if found is None and failed < _MOST_LEADERS and self._most_s > 0 and planner.worth_asking(planned, cold):
                number, ended = await self._asked(own, cold)
            if ended == "late":
                return own, number
            failed += ended == "gone"

    async def _asked(self, own: Leader, cold: Sequence[Stored]) -> tuple[int, Ended]:
        """What other processes say of what is led for here: that it leads there too ("late", with a number), or how waiting
        for one of them has ended. Where that was in time, it does not lead any more."""
        planner, planned, number = self._planner, self._planned, next(_numbers)
        assert planner.others is not None
        try:
            named = [(name_of(planned.pool, each.key), self._worth_s(each)) for each in cold]
            at, ended = await planner.others.join(number, named)
        except BaseException:
            planner.cohorts.end(own)
            raise
        if at < 0:
            return number, "late"
        if ended == "begun":
            for each in cold[: at + 1]:
                planner.held.store(planned.pool, each.key, self._at_us, each.life_s)
            planner.cohorts.begun(own)
        elif ended == "gone":
            planner.cohorts.end(own)
        return 0, ended

    def _worth_s(self, shared: Stored) -> float:
        """How much longer it may wait for that prefix."""
        saving_usd = shared.tokens * self._planned.saving_usd
        worth_s = min(self._most_s, saving_usd / self._value) if self._value > 0 else self._most_s
        return max(worth_s - (time.monotonic() - self._since), 0.0)
