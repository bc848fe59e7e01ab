"""What a lane is like, learnt from its answers: streamed figures with decay, started from the configured first guesses.

Three things are kept apart, since dividing one by the other rewards the lane that talks most: the wait for the first token
(by how much of the prompt must be computed), the pace of the tokens after it, and how far single answers stray from both.
Each is a ratio to the first guess, so that one sketch serves prompts of every length. Pure: the caller gives the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

HALF_LIFE_ANSWERS = 12.0  # of the means: a lane that changed is believed after about a dozen answers
SPREAD_HALF_LIFE_ANSWERS = 200.0  # of the quantiles, which need many
_USE_HALF_LIFE_ANSWERS = 100.0  # of the tokens of an answer, which stray most
HALF_LIFE_S = 600.0  # of both: what was seen an hour ago says little about now
PRIOR_WEIGHT = 0.02  # of a first guess, in answers
LENGTHS = 6  # classes of prompt length: to 512, 2k, 8k, 32k, 128k tokens, and beyond
_NEAR, _FAR = 1e-6, 1e6  # ratios beyond are a clock's slip
_STEP = math.log(1.08)  # resolution of a quantile: 8 %
_PACE_TOKENS = 2.0  # an answer needs one token more to show a pace
_SPREAD_PRIOR = 12.0  # weight, in answers, of the configured spread
_SPREADS = (0.05, 2.5)
_FRESH_ANSWERS = 16
_CROWDED = 3.0  # rent of a slot, in what it earns, where the queue is as long as there are slots

LENGTH_OF = tuple(min(max((bits - 8) // 2, 0), LENGTHS - 1) for bits in range(64))
"""Class of a prompt by the bits of its number of uncached tokens."""


class Mean:
    """A mean that forgets: by answers, and by seconds."""

    __slots__ = ("_at_s", "_half_life", "sum", "weight")

    def __init__(self, first_guess: float, half_life_answers: float = HALF_LIFE_ANSWERS) -> None:
        self._half_life = half_life_answers
        self.weight, self.sum = PRIOR_WEIGHT, PRIOR_WEIGHT * first_guess
        self._at_s: float | None = None

    @property
    def value(self) -> float:
        return self.sum / self.weight

    def add(self, value: float, now_s: float) -> None:
        idle_s = 0.0 if self._at_s is None else max(now_s - self._at_s, 0.0)
        keep = 0.5 ** (1.0 / self._half_life + idle_s / HALF_LIFE_S)
        self._at_s = now_s
        self.weight = self.weight * keep + 1.0
        self.sum = self.sum * keep + value


class Sketch:
    """Quantiles of a stream of positive values that forgets: a histogram of logarithms, 8 % a step."""

    __slots__ = ("_buckets", "_gain", "_half_life", "total")

    def __init__(self, half_life_answers: float = SPREAD_HALF_LIFE_ANSWERS) -> None:
        self._buckets: dict[int, float] = {}
        self._half_life, self._gain, self.total = half_life_answers, 1.0, 0.0

    def add(self, value: float) -> None:
        place = round(math.log(min(max(value, _NEAR), _FAR)) / _STEP)
        self._gain *= 2 ** (1.0 / self._half_life)  # new weights grow instead of old ones shrinking
        self._buckets[place] = self._buckets.get(place, 0.0) + self._gain
        self.total += self._gain
        if self._gain > 1e9:
            self._rescale()

    @property
    def weight(self) -> float:
        """Answers it stands for."""
        return self.total / self._gain

    def quantiles(self, *shares: float) -> list[float]:
        """Values below which these shares lie, in rising order; 1.0 each where nothing was seen."""
        found, below = [], 0.0
        places = sorted(self._buckets)
        at = iter(places)
        place = next(at, 0)
        for share in shares:
            while place != (places[-1] if places else 0) and below + self._buckets[place] < share * self.total:
                below += self._buckets[place]
                place = next(at)
            found.append(math.exp(place * _STEP))
        return found

    def _rescale(self) -> None:
        floor = self._gain * 1e-6
        self._buckets = {place: weight / self._gain for place, weight in self._buckets.items() if weight > floor}
        self.total, self._gain = sum(self._buckets.values()), 1.0


class Prior(NamedTuple):
    """First guesses: seconds to the first token of an empty prompt, per uncached token, and per token of output."""

    first_token_s: float = 0.0
    prefill_s_per_token: float = 0.0002
    seconds_per_output_token: float = 0.02
    spread: float = 0.5


class Figures(NamedTuple):
    """What a decision reads, as ratios to the prior; `spread` is the sigma of the logarithm."""

    first_token: tuple[float, ...] = (1.0,) * LENGTHS
    pace: float = 1.0
    first_token_spread: float = 0.5
    pace_spread: float = 0.5
    service_s: float = 0.0  # of one answer, its queue left out
    samples: int = 0
    uncached_tokens: float = 0.0  # of one answer, on average
    output_tokens: float = 0.0


class Rent(NamedTuple):
    """What a second of a crowded slot costs those who then go elsewhere, in tokens of the lane's own prices."""

    uncached_tokens: float
    output_tokens: float


def rent(figures: Figures, backlog_s: float) -> Rent | None:
    """A slot is free as long as nobody waits. From then on it costs what it does for others, times how long the queue is: the
    pool goes to those who gain most by a second of it, whatever their number."""
    if backlog_s <= 0.0 or figures.service_s <= 0.0:
        return None
    crowded = _CROWDED * backlog_s / figures.service_s**2
    return Rent(figures.uncached_tokens * crowded, figures.output_tokens * crowded)


def behind_s(in_flight: int, slots: int, service_s: float) -> float:
    """Seconds until one of `slots` is free for a call that comes behind `in_flight` others."""
    return max(in_flight + 1 - slots, 0) * service_s / slots


class LaneFigures:
    """One lane's memory of its answers."""

    __slots__ = (
        "_first", "_first_spread", "_firsts", "_output", "_pace", "_pace_spread", "_service", "_stale", "_uncached", "_view",
        "prior", "samples",
    )  # fmt: skip

    def __init__(self, prior: Prior) -> None:
        self.prior, self.samples = prior, 0
        self._first = Mean(1.0)
        self._firsts: list[Mean | None] = [None] * LENGTHS
        self._pace, self._service = Mean(1.0), Mean(0.0)
        self._uncached, self._output = Mean(0.0, _USE_HALF_LIFE_ANSWERS), Mean(0.0, _USE_HALF_LIFE_ANSWERS)
        self._first_spread, self._pace_spread = Sketch(), Sketch()
        self._view = Figures(first_token_spread=prior.spread, pace_spread=prior.spread)
        self._stale = False

    def view(self) -> Figures:
        """Worked out when asked for, not with every answer."""
        if self._stale:
            self._view = self._worked_out()
            self._stale = False
        return self._view

    def saw(
        self, *, uncached_tokens: int, output_tokens: int, first_token_s: float | None, total_s: float, now_s: float,
        backlog_s: float = 0.0,
    ) -> None:  # fmt: skip
        """An answer came whole. `first_token_s` is None where it was not streamed: then the total is shared out between
        first token and pace as they are thought to stand. `backlog_s`: the queue that was known of, which is nobody's pace."""
        if not total_s > 0.0:
            return
        expected_first = self.prior.first_token_s + uncached_tokens * self.prior.prefill_s_per_token
        expected_rest = max(output_tokens - 1, 0) * self.prior.seconds_per_output_token
        length = LENGTH_OF[uncached_tokens.bit_length()] if uncached_tokens > 0 else 0
        first = self._firsts[length] or self._first
        rest_s = total_s - backlog_s if first_token_s is None else total_s - first_token_s
        self.samples += 1
        self._stale = True
        self._service.add(max(total_s - backlog_s, 0.0), now_s)
        self._uncached.add(float(uncached_tokens), now_s)
        self._output.add(float(output_tokens), now_s)
        if first_token_s is None:
            thought = first.value * expected_first + self._pace.value * expected_rest
            if thought > 0.0:
                ratio = max(rest_s, 0.0) / thought
                self._note(length, first.value * ratio, now_s)
                self._note_pace(self._pace.value * ratio, output_tokens, now_s)
            return
        if expected_first > 0.0:
            self._note(length, max(first_token_s - backlog_s, 0.0) / expected_first, now_s)
        if expected_rest > 0.0:
            self._note_pace(max(rest_s, 0.0) / expected_rest, output_tokens, now_s)

    def _note(self, length: int, ratio: float, now_s: float) -> None:
        ratio = min(max(ratio, _NEAR), _FAR)
        mean = self._firsts[length]
        if mean is None:
            mean = self._firsts[length] = Mean(self._first.value)
        elif mean.value > 0.0:
            self._first_spread.add(ratio / mean.value)
        mean.add(ratio, now_s)
        self._first.add(ratio, now_s)

    def _note_pace(self, ratio: float, output_tokens: int, now_s: float) -> None:
        if output_tokens < _PACE_TOKENS:
            return
        ratio = min(max(ratio, _NEAR), _FAR)
        if self.samples > 1:
            self._pace_spread.add(ratio / self._pace.value)
        self._pace.add(ratio, now_s)

    def _worked_out(self) -> Figures:
        return Figures(
            first_token=tuple((mean or self._nearest(i)).value for i, mean in enumerate(self._firsts)),
            pace=self._pace.value,
            first_token_spread=_spread(self._first_spread, self.prior.spread),
            pace_spread=_spread(self._pace_spread, self.prior.spread),
            service_s=self._service.value if self.samples else 0.0,
            samples=self.samples,
            uncached_tokens=self._uncached.value,
            output_tokens=self._output.value,
        )

    def _nearest(self, length: int) -> Mean:
        known = [(abs(i - length), i) for i, mean in enumerate(self._firsts) if mean is not None]
        return (self._firsts[min(known)[1]] if known else None) or self._first


def _spread(sketch: Sketch, prior: float) -> float:
    """Sigma of a log-normal with the sketch's upper tail: from p95 or p99 against p50, whichever is worse."""
    if not sketch.total:
        return prior
    p50, p95, p99 = sketch.quantiles(0.5, 0.95, 0.99)
    seen = max(math.log(p95 / p50) / 1.645, math.log(p99 / p50) / 2.326)
    known = sketch.weight / (sketch.weight + _SPREAD_PRIOR)
    return min(max(known * seen + (1.0 - known) * prior, _SPREADS[0]), _SPREADS[1])


class Forecast(NamedTuple):
    """How long an answer will be: expected tokens, and the sigma of its logarithm."""

    tokens: float
    spread: float = 0.8


class Lengths:
    """Output lengths seen, by route and class; what is not known yet falls back on the model's, then on the prior's."""

    def __init__(self, prior: Forecast, max_routes: int = 10_000) -> None:
        self._prior, self._max_routes = prior, max_routes
        self._seen: dict[tuple[str, ...], tuple[Mean, Sketch]] = {}
        self._views: dict[tuple[str, ...], Forecast] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def saw(self, team: str, model: str, class_name: str, output_tokens: int, now_s: float) -> None:
        """An answer came whole, with this many tokens."""
        for key in ((team, model, class_name), (model,)):
            kept = self._seen.get(key)
            if kept is None:
                if len(self._seen) >= self._max_routes:
                    continue
                kept = self._seen[key] = (Mean(self._prior.tokens, 50.0), Sketch())
            kept[0].add(float(output_tokens), now_s)
            kept[1].add(float(max(output_tokens, 1)))
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count < _FRESH_ANSWERS or count % _FRESH_ANSWERS == 0:
                self._views.pop(key, None)  # quantiles are not worked out anew for every answer

    def of(self, team: str, model: str, class_name: str) -> Forecast:
        key = (team, model, class_name)
        return self._views.get(key) or self._view(key) or self._view((model,)) or self._prior

    def quantiles(self, team: str, model: str, class_name: str, *shares: float) -> list[float]:
        """Tokens below which these shares of the route's answers end; empty where none was seen."""
        kept = self._seen.get((team, model, class_name)) or self._seen.get((model,))
        return kept[1].quantiles(*shares) if kept else []

    def _view(self, key: tuple[str, ...]) -> Forecast | None:
        found = self._views.get(key)
        kept = self._seen.get(key)
        if found is None and kept is not None:
            found = self._views[key] = Forecast(kept[0].value, _spread(kept[1], self._prior.spread))
        return found
