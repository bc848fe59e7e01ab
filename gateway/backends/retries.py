"""How many further tries a backend may see: a tenth of its calls of the last ten seconds, and three in any case.

Without a bound, tries multiply the load of a backend that fails because of load. Tries that clients make by themselves
(`x-stainless-retry-count`) use the budget up too, though they are never refused here. Times are monotonic seconds.
"""
from __future__ import annotations

SECONDS, SHARE, LEAST = 10, 0.1, 3


class RetryBudget:
    """One per backend and process: calls and tries by second, in two rings."""

    __slots__ = ("_calls", "_now", "_tries")

    def __init__(self) -> None:
        self._calls = [0] * SECONDS
        self._tries = [0] * SECONDS
        self._now = 0

    def call(self, now: float, *, again_by_client: bool = False) -> None:
        """A first attempt of a call."""
        self._turn(int(now))
        self._calls[self._now % SECONDS] += 1
        if again_by_client:
            self._tries[self._now % SECONDS] += 1

    def take(self, now: float) -> bool:
        """Whether one more try may be made; if so, it is counted."""
        self._turn(int(now))
        if sum(self._tries) >= max(LEAST, SHARE * sum(self._calls)):
            return False
        self._tries[self._now % SECONDS] += 1
        return True

    def _turn(self, second: int) -> None:
        if second == self._now:
            return
        for passed in range(self._now + 1, min(second, self._now + SECONDS) + 1):
            self._calls[passed % SECONDS] = self._tries[passed % SECONDS] = 0
        self._now = second
