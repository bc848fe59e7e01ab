"""When conversations came around the times at which traffic is known to begin, by the beginning of their prompts, and whether
writing that ahead of them is worth what it costs.

Day by day it is known when each came. What a day would have saved: the write of the first one, or of all that come before its
answer has begun where they do not wait for it, and the time for which they all wait. The mean of the days, counted as if
there had been one more on which nobody came, has to be more than the write.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.planner.values import Beginning, Life

LEAD_S, WINDOW_S = 60.0, 3_600.0
"""How long before its time a beginning is written, and for how long after it calls are looked at."""
_MOST_DAYS, _MOST_A_DAY = 14, 500

Event = tuple[int, int, int, float]
"""Name, the time it is about and when it came, microseconds, and what a second of its waiting is worth, dollars."""
_Came = tuple[float, float]
"""Seconds after the time, and dollars a second."""


class Offer(NamedTuple):
    """What may be written. `wait_s`: from a call until its answer begins, for what it has to compute where it cannot be read;
    `together`: whether calls wait for the first one to write."""

    beginning: Beginning
    wait_s: float
    together: bool


class Arrivals:
    """Bounded, least recently used out first."""

    def __init__(self, most: int = 4_096) -> None:
        self._most = most
        self._days: OrderedDict[int, OrderedDict[int, list[_Came]]] = OrderedDict()
        """Name -> time of a day -> who came around it."""
        self.fresh: dict[int, Event] | None = None
        self._told = 0

    def came(self, name: int, time_us: int, at_us: int, value_usd_per_s: float) -> None:
        """A conversation began with it around that time."""
        self._note(name, time_us, at_us, value_usd_per_s)
        if self.fresh is not None:
            self._told += 1
            self.fresh[self._told] = name, time_us, at_us, value_usd_per_s

    def expect(self, name: int, time_us: int) -> None:
        """A day of which it is to be known if nobody came."""
        if name not in self._days:
            self._days[name] = OrderedDict()
            if len(self._days) > self._most:
                self._days.popitem(last=False)
        self._days.move_to_end(name)
        days = self._days[name]
        days.setdefault(time_us, [])
        if len(days) > _MOST_DAYS:
            days.popitem(last=False)

    def take(self, pairs: Iterable[tuple[int, Event]]) -> None:
        """What other processes saw."""
        for _, event in pairs:
            self._note(*event)

    def worth(self, name: int, time_us: int, offer: Offer) -> tuple[Life, float] | None:
        """The lifetime for which writing it before that time gains most, and how many dollars; None: it gains nothing."""
        days = [came for day_us, came in self._days.get(name, {}).items() if day_us < time_us]
        gains = [
            (life, sum([_saved(came, life.seconds, offer) for came in days]) / (len(days) + 1) - life.write_usd)
            for life in offer.beginning.lives
        ]
        best = max(gains, key=lambda gain: gain[1], default=None)
        return best if best is not None and best[1] > 0 else None

    def _note(self, name: int, time_us: int, at_us: int, value_usd_per_s: float) -> None:
        self.expect(name, time_us)
        came = self._days[name].get(time_us)
        if came is not None and len(came) < _MOST_A_DAY:
            came.append(((at_us - time_us) / 1e6, value_usd_per_s))


def _saved(came: Sequence[_Came], life_s: float, offer: Offer) -> float:
    """Dollars that one day's calls would have saved, had it been written for so long."""
    in_time = sorted([one for one in came if -LEAD_S <= one[0] < life_s - LEAD_S])
    if not in_time:
        return 0.0
    burst = [value for after_s, value in in_time if after_s <= in_time[0][0] + offer.wait_s]
    writes = 1 if offer.together else len(burst)
    return writes * offer.beginning.saved_usd + sum(burst) * offer.wait_s
