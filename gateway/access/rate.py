"""How many calls a team may start a minute: an even rate with room for a burst of a tenth of it (GCRA)."""
from __future__ import annotations

import time
from collections.abc import Callable

from gateway.core.errors import RateLimited

_BURST = 0.1


class Rates:
    """Per process; a team costs one float. `share`: of the rate, for this process, where there are several workers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, share: float = 1.0) -> None:
        self._clock = clock
        self._share = share
        self._next: dict[str, float] = {}

    def admit(self, team: str, per_minute: int | None) -> None:
        """Counts one call. Raises `RateLimited`, which says when to come back."""
        if per_minute is None:
            return
        here = per_minute * self._share
        now, gap = self._clock(), 60.0 / here
        due = max(self._next.get(team, 0.0), now)
        early = due - now - gap * max(1.0, here * _BURST)
        if early > 0:
            raise RateLimited(f"team {team} may start {per_minute} calls a minute (its policy file)", retry_after_s=early)
        self._next[team] = due + gap
