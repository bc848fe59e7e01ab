"""When a lane is left alone because it fails, and when it is tried again.

It opens on half of at least twenty calls within ten seconds failing, or on three in a row; then one call a second is let
through, and the first that is answered closes it. What the client did wrong does not count. Times are monotonic seconds.

It may also be opened by what another process has seen, and then that process may close it, too.
"""
from __future__ import annotations

from collections import deque

WINDOW_S, LEAST_CALLS, SHARE, IN_A_ROW, PROBE_S = 10.0, 20, 0.5, 3, 1.0


class Breaker:
    """One per lane and process."""

    __slots__ = ("_calls", "_failures", "_failures_in_window", "_hearsay", "_next_probe", "is_open")

    def __init__(self) -> None:
        self.is_open = self._hearsay = False
        self._calls: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._failures_in_window = 0
        self._next_probe = 0.0

    def answered(self, now: float) -> bool:
        """Whether this closed it after failures seen here."""
        self._failures = 0
        self._count(now, failed=False)
        if not self.is_open:
            return False
        self.is_open = False
        self._calls.clear()
        self._failures_in_window = 0
        return not self._hearsay

    def failed(self, now: float) -> bool:
        """Whether this opened it, or showed that what was heard is so here, too."""
        self._failures += 1
        self._count(now, failed=True)
        many = len(self._calls) >= LEAST_CALLS and self._failures_in_window >= SHARE * len(self._calls)
        if not (many or self._failures >= IN_A_ROW) or (self.is_open and not self._hearsay):
            return False
        self.is_open, self._hearsay = True, False
        self._next_probe = now + PROBE_S
        return True

    def heard(self, now: float, *, fails: bool) -> None:
        """Another process's breaker opened or closed. One call may try at once."""
        if fails and not self.is_open:
            self.is_open, self._hearsay, self._next_probe = True, True, now
        elif not fails and self._hearsay:
            self.is_open = False

    def wait_s(self, now: float) -> float:
        """How long until a call may go there; 0: now."""
        return max(self._next_probe - now, 0.0) if self.is_open else 0.0

    def admit(self, now: float) -> bool:
        """Whether this call may go there. Of an open breaker, one call a second may."""
        if not self.is_open:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_S
        return True

    def _count(self, now: float, *, failed: bool) -> None:
        calls = self._calls
        calls.append((now, failed))
        self._failures_in_window += failed
        while calls[0][0] < now - WINDOW_S or len(calls) > 4_096:
            self._failures_in_window -= calls.popleft()[1]
