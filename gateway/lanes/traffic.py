"""What calls have in common beyond one lane: how long answers of a route are, which runs have calls under way, whose turn
it is to try a lane whose figures are stale."""
from __future__ import annotations

import time
from collections import Counter

from router_policies.live import Forecast, Lengths
from router_policies.presets import OUTPUT_PRIOR
from router_policies.turns import Place, Turns

_GOLDEN = 0.6180339887498949


class Traffic:
    """One per process; bounded by the calls in flight and the routes."""

    def __init__(self, seed: float = 0.5) -> None:
        self.lengths = Lengths(OUTPUT_PRIOR)
        self.turns = Turns()
        self._runs: Counter[str] = Counter()
        self._draw = seed

    def draw(self) -> float:
        """The next of a sequence that fills [0, 1) evenly: n calls have n x share draws below any share, nearly."""
        self._draw = (self._draw + _GOLDEN) % 1.0
        return self._draw

    def forecast(self, team: str, model: str, class_name: str) -> Forecast:
        return self.lengths.of(team, model, class_name)

    def began(self, run: str) -> None:
        self._runs[run] += 1

    def ended(self, run: str) -> None:
        self._runs[run] -= 1
        if self._runs[run] <= 0:
            del self._runs[run]

    def siblings(self, run: str | None) -> int:
        """Other calls of this run under way; ask after `began`."""
        return max(self._runs[run] - 1, 0) if run is not None else 0

    def answered(self, team: str, model: str, class_name: str, output_tokens: int | None) -> None:
        """An answer came whole."""
        if output_tokens is not None:
            self.lengths.saw(team, model, class_name, output_tokens, time.monotonic())


def place_of(team: str, key_id: str, run: str | None, client: str, model: str, session: str | None) -> Place:
    """See `Turns`."""
    return team, key_id, run or "", client, model, session or ""
