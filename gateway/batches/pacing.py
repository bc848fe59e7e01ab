"""How fast queued calls get done here, as the last ones showed, and what time it is; see `router_policies/queueing.py`."""
from __future__ import annotations

from collections.abc import Callable

from gateway.core import clock
from router_policies.queueing import Pace

_NEWEST = 0.2
"""Weight of the newest call in the pace."""


class Pacing:
    """`pace` is what is known now."""

    def __init__(self, at_once: int) -> None:
        self.pace = Pace(at_once=at_once)
        self.now_s: Callable[[], float] = lambda: clock.now_us() / 1e6

    def served(self, took_s: float) -> None:
        """A call on an ordinary lane."""
        self.pace = self.pace._replace(service_s=self.pace.service_s * (1 - _NEWEST) + took_s * _NEWEST)

    def back(self, took_s: float) -> None:
        """A provider's batch: slower ones are believed at once, quicker ones by and by."""
        slower = max(took_s, self.pace.turnaround_s * (1 - _NEWEST) + took_s * _NEWEST)
        self.pace = self.pace._replace(turnaround_s=slower)
