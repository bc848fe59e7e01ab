"""What processes tell each other of lanes: that one fails, answers again, or asked to be left alone (a source of `sharing.py`).

Who hears that a lane fails leaves it alone as if it had failed here, but for one call at once and one a second, and closes its
breaker as soon as one is answered: a fault of one process only costs the others a moment. "It answers again" is said by those
whose own calls had failed, so that a process that fails alone is not talked into trying.
"""
from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from gateway.backends.fleet import Fleet
from gateway.core import clock

What = Literal["fails", "answers", "cools"]
News = tuple[What, float, str]
"""What there is of a lane, until when (epoch seconds, of those that cool), and why."""


class LaneNews:
    """Of all lanes; `fresh` keeps the latest of each."""

    def __init__(self, fleet: Fleet) -> None:
        self.fresh: dict[str, News] | None = None
        self._fleet = fleet
        for key, probe in fleet.probes.items():
            probe.tell = partial(self._say, key)

    def take(self, pairs: Iterable[tuple[str, News]]) -> None:
        """What another process has seen; lanes that are not configured here do not matter."""
        now_s = clock.now_us() / 1e6
        for key, (what, until_s, why) in pairs:
            probe = self._fleet.probes.get(key)
            if probe is None:
                continue
            if what == "cools":
                probe.cool_as_told(why, until_s - now_s)
            else:
                probe.hear(why, fails=what == "fails")
        self._fleet.stale()

    def _say(self, key: str, what: What, seconds: float, why: str) -> None:
        if self.fresh is not None:
            self.fresh[key] = what, clock.now_us() / 1e6 + seconds, why[:200]
