"""The gap between an answer and the next turn of its conversation: people take seconds, programs milliseconds.

The gateway asks it while it serves, and `tollway sensitivity train` when it reads the ledger: the same code, so that what was
learnt holds for what is asked.
"""

from __future__ import annotations

from collections import OrderedDict

Place = tuple[str, ...]
"""What turns of one conversation have in common: team, key, run, client, model, and how it begins."""


class Turns:
    """The last answer of each place; the oldest are forgotten first."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._last: OrderedDict[Place, tuple[float, int]] = OrderedDict()

    def gap_s(self, place: Place, at_s: float, prompt_tokens: int) -> float | None:
        """Seconds since the answer that this call goes on from; None where it does not look like a next turn, which is longer
        than the turn before it."""
        last = self._last.get(place)
        if last is None or prompt_tokens <= last[1]:
            return None
        return max(at_s - last[0], 0.0)

    def answered(self, place: Place, end_s: float, prompt_tokens: int) -> None:
        self._last[place] = end_s, prompt_tokens
        self._last.move_to_end(place)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
