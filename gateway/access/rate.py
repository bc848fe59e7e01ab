"""How many calls a team may start a minute: an even rate with room for a burst of a tenth of it (GCRA)."""
from __future__ import annotations

import time
from collections.abc import Callable

from gateway.core.errors import RateLimited

_BURST = 0.1


class Rates:
    """Per process; a team costs one float."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}

    def admit(self, team: str, per_minute: int | None) -> None:
        """Counts one call. Raises `RateLimited`, which says when to come back."""
        if per_minute is None:
            return
        now, gap = self._clock(), 60.0 / per_minute
        due = max(self._next.get(team, 0.0), now)
        early = due - now - gap * max(1.0, per_minute * _BURST)
        if early > 0:
            raise RateLimited(f"team {team} may start {per_minute} calls a minute (its policy file)", retry_after_s=early)
        self._next[team] = due + gap
