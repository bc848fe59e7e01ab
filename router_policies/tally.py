"""What a run of the simulator comes to: dollars, tokens, waits and misses by team and class, with bootstrap intervals.

Calls near each other share queues and caches, so whole stretches of time are drawn again, not single calls; two runs over the
same trace are drawn alike, so that the interval of their difference is that of the difference. Memory does not grow with it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from router_policies.simulate import Outcome, Recorded

STRETCHES = 64
RESAMPLES = 200
_STEP = math.log(1.02)

Figure = Callable[["Sums"], float]


@dataclass(slots=True)
class Sums:
    """Of some calls; adds up."""

    calls: int = 0
    refused: int = 0
    missed: int = 0
    cost_usd: float = 0.0
    waited_usd: float = 0.0  # value of the time that was waited
    uncached: int = 0
    cached: int = 0
    output: int = 0
    first_token: Counter[int] = field(default_factory=Counter)  # logarithms, in steps of 2 %
    lanes: Counter[str] = field(default_factory=Counter)

    def add(self, served: Outcome | None) -> None:
        self.calls += 1
        if served is None:
            self.refused += 1
            self.missed += 1
            return
        self.missed += served.missed
        self.cost_usd += served.cost_usd
        self.waited_usd += served.klass.value_usd_per_s * served.total_s
        self.uncached += served.uncached
        self.cached += served.cached
        self.output += served.output
        self.first_token[round(math.log(max(served.first_token_s, 1e-4)) / _STEP)] += 1
        self.lanes[served.lane] += 1

    def plus(self, other: Sums, times: int = 1) -> None:
        self.calls += other.calls * times
        self.refused += other.refused * times
        self.missed += other.missed * times
        self.cost_usd += other.cost_usd * times
        self.waited_usd += other.waited_usd * times
        self.uncached += other.uncached * times
        self.cached += other.cached * times
        self.output += other.output * times
        for mine, theirs in ((self.first_token, other.first_token), (self.lanes, other.lanes)):
            for name, count in theirs.items():
                mine[name] += count * times  # type: ignore[index]

    @property
    def miss_share(self) -> float:
        return self.missed / self.calls if self.calls else 0.0

    def first_token_s(self, share: float) -> float:
        wanted, below = share * self.first_token.total(), 0
        for place in sorted(self.first_token):
            below += self.first_token[place]
            if below >= wanted:
                return math.exp(place * _STEP)
        return math.nan


FIGURES: dict[str, Figure] = {
    "cost_usd": lambda sums: sums.cost_usd,
    "cost_and_wait_usd": lambda sums: sums.cost_usd + sums.waited_usd,
    "miss_share": lambda sums: sums.miss_share,
    "first_token_p50_s": lambda sums: sums.first_token_s(0.5),
    "first_token_p95_s": lambda sums: sums.first_token_s(0.95),
}


class Tally:
    """All calls of a run, by stretch of time, team and class. Stretches double in length as the trace goes on."""

    def __init__(self) -> None:
        self._width_s = 1.0 / STRETCHES
        self._cells: dict[tuple[int, str, str], Sums] = {}

    def add(self, call: Recorded, served: Outcome | None, class_name: str) -> None:
        while call.at_s >= self._width_s * STRETCHES:
            self._double()
        key = (int(call.at_s / self._width_s), call.team, class_name)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Sums()
        cell.add(served)

    def plus(self, other: Tally) -> None:
        """Adds another run's calls: other calls of the same trace."""
        while self._width_s < other._width_s:
            self._double()
        times = round(self._width_s / other._width_s)
        for (stretch, team, name), cell in other._cells.items():
            self._cells.setdefault((stretch // times, team, name), Sums()).plus(cell)

    def _double(self) -> None:
        self._width_s *= 2
        old, self._cells = self._cells, {}
        for (stretch, team, name), cell in old.items():
            self._cells.setdefault((stretch // 2, team, name), Sums()).plus(cell)

    def stretches(self) -> int:
        """As many as the calls reach over."""
        return max((stretch for stretch, _, _ in self._cells), default=0) + 1

    def groups(self) -> list[tuple[str, str]]:
        return sorted({(team, name) for _, team, name in self._cells})

    def sums(self, group: tuple[str, str] | None = None, stretches: Iterable[int] | None = None) -> Sums:
        """Of everything, or of one team and class; over these stretches, each as often as it is named."""
        by_stretch: dict[int, list[Sums]] = {}
        for (stretch, team, name), cell in self._cells.items():
            if group is None or (team, name) == group:
                by_stretch.setdefault(stretch, []).append(cell)
        total = Sums()
        for stretch in by_stretch if stretches is None else stretches:
            for cell in by_stretch.get(stretch, ()):
                total.plus(cell)
        return total


def resampled(tallies: Sequence[Tally], group: tuple[str, str] | None = None, seed: int = 0) -> list[list[Sums]]:
    """Sums of each run, drawn anew many times by stretches of time, all runs alike."""
    rng, count = random.Random(seed), max(tally.stretches() for tally in tallies)
    cells = [[tally.sums(group, [n]) for n in range(count)] for tally in tallies]
    found = []
    for _ in range(RESAMPLES):
        drawn = Counter(rng.choices(range(count), k=count))
        totals = []
        for stretches in cells:
            total = Sums()
            for n, times in drawn.items():
                total.plus(stretches[n], times)
            totals.append(total)
        found.append(totals)
    return found


def interval(values: Iterable[float]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    ordered = sorted(value for value in values if not math.isnan(value)) or [math.nan]
    return ordered[int(0.025 * len(ordered))], ordered[min(int(0.975 * len(ordered)), len(ordered) - 1)]
