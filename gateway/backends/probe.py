"""What lanes are like right now: calls in flight, how fast lately, whether one is to be left alone.

Speeds are learnt per lane (`router_policies/live.py`) from the configured first guesses on. A lane that refuses (429, 503,
529) cools for as long as it asks; one that fails is left alone by its breaker.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from gateway.backends.breaker import Breaker
from gateway.lanes.load import Load, backlog_s
from gateway.settings_file import LaneSettings
from router_policies.live import LaneFigures, Prior

_LEAST_COOL_S, _COOL_S, _MAX_COOL_S = 1.0, 5.0, 60.0
"""Of a lane that does not say how long, at first and at most; and at most in any case."""
_MANY = 8
_WELL_KNOWN, _LEARN_EVERY_S = 500, 0.01


def _to_nobody(what: str, seconds: float, why: str) -> None:
    return None


class LaneProbe:
    """Mutable figures of a lane; one per lane and process."""

    def __init__(self, how: LaneSettings) -> None:
        self.max_in_flight = how.max_in_flight
        self.slots = how.slots
        self.in_flight = 0
        self.load: Load | None = None
        """What the engine says of itself; an adapter puts it here."""
        self.last_answer = 0
        """The fleet's count of answers when this lane gave its last."""
        self.prior = Prior(
            how.first_token_ms / 1e3, 1.0 / how.prefill_tokens_per_s if how.prefill_tokens_per_s else 0.0,
            how.ms_per_output_token / 1e3, how.spread,
        )  # fmt: skip
        self.figures = LaneFigures(self.prior)
        self._breaker = Breaker()
        self.admit: Callable[[float], bool] = self._breaker.admit
        """Whether an attempt may begin: of a lane that fails, one call a second."""
        self._learns_at = 0.0
        self._cooled_at = self._cooled_until = 0.0
        self._refusals = 0
        """In a row."""
        self._why = ""
        self.tell: Callable[[Literal["fails", "answers", "cools"], float, str], None] = _to_nobody
        """What other processes should know (what, seconds, why); `news.py` listens."""

    def backlog_s(self, now: float) -> float:
        """Wait for the calls that are there already, as far as it is known."""
        if self.load is None and self.slots is None:
            return 0.0
        view = self.figures.view()
        return backlog_s(self.load, now, self.in_flight, self.slots, self.prior.prefill_s_per_token, view)

    def why_not(self, now: float) -> str | None:
        """Why no call should go there now (`now` is monotonic seconds), or None."""
        if now < self._cooled_until:
            return f"{self._why}; left alone for {self._cooled_until - now:.1f} s more"
        wait_s = self._breaker.wait_s(now)
        if wait_s:
            return f"{self._why}; tried again in {wait_s:.1f} s"
        return None

    def rest_s(self, now: float) -> float:
        """How long until a call may go there; 0: now."""
        return max(self._cooled_until - now, self._breaker.wait_s(now), 0.0)

    def cooled_for_s(self, now: float) -> float:
        return max(self._cooled_until - now, 0.0)

    def answered(
        self, *, uncached_tokens: int | None, output_tokens: int | None, first_token_s: float | None, total_s: float,
        backlog_s: float = 0.0,
    ) -> bool:  # fmt: skip
        """An answer came whole. `first_token_s`: None where it did not stream; `backlog_s`: the queue that was expected.
        Gives whether figures were learnt from it: a busy lane that is well known learns from a hundred answers a second."""
        now = time.monotonic()
        if now - total_s >= self._cooled_at:    # asked after it had refused
            self._cooled_until, self._refusals = 0.0, 0
        if self._breaker.answered(now):
            self.tell("answers", 0.0, "")
        if uncached_tokens is None or output_tokens is None or (self.figures.samples > _WELL_KNOWN and now < self._learns_at):
            return False
        self._learns_at = now + _LEARN_EVERY_S
        self.figures.saw(
            uncached_tokens=uncached_tokens, output_tokens=output_tokens, first_token_s=first_token_s, total_s=total_s,
            now_s=now, backlog_s=backlog_s,
        )  # fmt: skip
        return True

    def failed(self, why: str) -> None:
        """An attempt failed by the backend's fault."""
        self._why = why
        if self._breaker.failed(time.monotonic()):
            self.tell("fails", 0.0, why)

    def cool(self, why: str, seconds: float | None) -> None:
        """The lane asked to be left alone, for `seconds` if it said how long; else for longer each time in a row."""
        guess = min(_LEAST_COOL_S * 2**self._refusals, _COOL_S)
        self._why, self._refusals = why, min(self._refusals + 1, _MANY)
        seconds = min(guess if seconds is None else seconds, _MAX_COOL_S)
        self._cooled_at = time.monotonic()
        self._cooled_until = self._cooled_at + seconds
        self.tell("cools", seconds, why)

    def cool_as_told(self, why: str, seconds: float) -> None:
        """The lane asked another process to be left alone."""
        until = time.monotonic() + min(seconds, _MAX_COOL_S)
        if until > self._cooled_until:
            self._why, self._cooled_at, self._cooled_until = f"{why}, as another process saw", time.monotonic(), until

    def hear(self, why: str, *, fails: bool) -> None:
        """Another process's calls fail there, or are answered again."""
        if fails and not self._breaker.is_open:
            self._why = f"{why}, as another process saw"
        self._breaker.heard(time.monotonic(), fails=fails)
