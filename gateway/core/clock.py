"""What time it is: this machine's wall clock, set right by the one that replicas share.

Where replicas write into one database their calls, keys and news are dated by its clock, so that machines whose clocks are
apart agree on what has ended and what came first. Durations go by the monotonic clock, never by this one.
"""
from __future__ import annotations

import time

TOLERANCE_US = 100_000
"""Less than this is not told from the way of the question and its answer."""


class Clock:
    """One per process: `SHARED`."""

    def __init__(self) -> None:
        self.ahead_us = 0
        """The shared clock less this machine's."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        return time.time_ns() // 1_000 + self.ahead_us

    def correct(self, ahead_us: int, unsure_us: int = 0) -> None:
        """The shared clock was found that far ahead, give or take `unsure_us`; what may be no difference changes nothing."""
        if abs(ahead_us - self.ahead_us) > max(TOLERANCE_US, unsure_us):
            self.ahead_us = ahead_us


SHARED = Clock()
now_us = SHARED.now_us
