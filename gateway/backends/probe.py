"""What lanes are like right now: calls in flight, how fast lately, whether one is to be left alone.

The lanes of one backend slow down together, so what is learnt is one factor per backend: observed over expected time, as an
exponentially decayed mean, applied to every lane's configured first guess. A lane that refuses (429, 503, 529) cools for
as long as it asks; one that fails repeatedly cools for a while.
"""
from __future__ import annotations

import time

from gateway.settings import LaneSettings

_DECAY = 0.1
_SLOWEST, _FASTEST = 50.0, 0.02
_COOL_S = 5.0
_MAX_COOL_S = 60.0
_FAILURES_TO_COOL = 3


class Pace:
    """How a backend's real times compare with the first guesses; one per backend and process."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.samples = 0

    def saw(self, observed_s: float, expected_s: float) -> None:
        if expected_s > 0 and observed_s > 0:
            ratio = min(max(observed_s / expected_s, _FASTEST), _SLOWEST)
            self.factor += _DECAY * (ratio - self.factor)
            self.samples += 1


class LaneProbe:
    """Mutable figures of a lane; one per lane and process."""

    def __init__(self, how: LaneSettings, pace: Pace) -> None:
        self.max_in_flight = how.max_in_flight
        self.in_flight = 0
        self.pace = pace
        self._queue_s = how.first_token_ms / 1e3
        self._prefill_s_per_token = 1.0 / how.prefill_tokens_per_s if how.prefill_tokens_per_s else 0.0
        self._s_per_output_token = how.ms_per_output_token / 1e3
        self._failures = 0
        self._cooled_until = 0.0
        self._why = ""

    @property
    def queue_s(self) -> float:
        return self._queue_s * self.pace.factor

    @property
    def prefill_s_per_token(self) -> float:
        return self._prefill_s_per_token * self.pace.factor

    @property
    def s_per_output_token(self) -> float:
        return self._s_per_output_token * self.pace.factor

    def why_not(self, now: float) -> str | None:
        """Why no call should go there now (`now` is monotonic seconds), or None."""
        if now < self._cooled_until:
            return f"{self._why}; left alone for {self._cooled_until - now:.0f} s more"
        return None

    def cooled_for_s(self, now: float) -> float:
        return max(self._cooled_until - now, 0.0)

    def answered(self, *, uncached_tokens: int | None, output_tokens: int | None, total_s: float) -> None:
        """An answer came whole."""
        self._failures = 0
        if uncached_tokens is not None and output_tokens is not None:
            guess = self._queue_s + uncached_tokens * self._prefill_s_per_token + output_tokens * self._s_per_output_token
            self.pace.saw(total_s, guess)

    def failed(self, why: str) -> None:
        """An attempt failed by the backend's fault; the third in a row cools the lane."""
        self._failures += 1
        if self._failures >= _FAILURES_TO_COOL:
            self.cool(why, _COOL_S)

    def cool(self, why: str, seconds: float | None) -> None:
        """The lane asked to be left alone, for `seconds` if it said how long."""
        self._why = why
        self._cooled_until = time.monotonic() + min(seconds if seconds is not None else _COOL_S, _MAX_COOL_S)
