"""Fixed beginnings of prompts (tools, system prompt) that a provider stores as objects for rent: how often each had to be
computed anew lately, whether renting is worth it, and which objects there are.

Where the provider's own cache keeps a beginning alive nothing is rented; what counts are calls that did not find it there.
"""
from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

_HOURS = 3
LEAST = 5
"""Misses in that time before anything is rented."""
_DOUBT, _DOUBT_OF_MORE = 1.0, 0.3
"""Standard deviations by which chance may have made misses more than they are: before an object is made, before it is kept."""
_SPREAD = 0.5
"""Share of the price of making an object that its first hour has to earn."""


class Head(NamedTuple):
    """`name` stands for it in its pool, `first` is the prompt's first part behind it."""

    name: int
    tokens: int
    first: int


class Rent(NamedTuple):
    """Dollars per token: saved where it is read and not computed, for an hour's storage, for computing it once."""

    saved: float
    hour: float
    once: float


class Stored(NamedTuple):
    """An object at the provider, and until when (microseconds)."""

    object: str
    until_us: int


@dataclass(slots=True)
class Known:
    """What was seen of a head. `latest`: what an object of it is made of; None: not known, or the provider
    does not take it."""

    tokens: int
    last_us: int = 0
    missed_us: deque[int] = field(default_factory=lambda: deque(maxlen=1_000))
    latest: Any = None

    def misses(self, now_us: int) -> int:
        """In the last hours."""
        while self.missed_us and self.missed_us[0] <= now_us - _HOURS * 3_600_000_000:
            self.missed_us.popleft()
        return len(self.missed_us)

    def worth(self, rent: Rent, now_us: int, *, new: bool) -> bool:
        """Whether hours like the last ones pay for storage, and for making the object if it is `new`."""
        misses = self.misses(now_us)
        surely = (misses - (_DOUBT if new else _DOUBT_OF_MORE) * sqrt(misses)) / _HOURS
        return misses >= (LEAST if new else 1) and surely * rent.saved > rent.hour + _SPREAD * rent.once * new


class Heads:
    """Bounded, least recently used out first."""

    def __init__(self, most: int = 500) -> None:
        self._most = most
        self.known: OrderedDict[int, Known] = OrderedDict()
        self.stored: dict[int, Stored] = {}
        self.fresh: dict[int, Stored] | None = None

    def object(self, name: int, now_us: int) -> str | None:
        """The provider's name of a head that is stored."""
        found = self.stored.get(name)
        return found.object if found is not None and found.until_us > now_us else None

    def came(self, head: Head, now_us: int, life_s: float, *, read: bool | None, latest: Callable[[], Any]) -> None:
        """A call with it was answered. `read`: whether the provider had it by itself; None: an object was read, so what counts
        is whether more time than `life_s`, the lifetime of the provider's own cache, has passed since the last call."""
        known = self.known.get(head.name)
        if known is None:
            known = self.known[head.name] = Known(head.tokens)
            if len(self.known) > self._most:
                self.known.popitem(last=False)
        self.known.move_to_end(head.name)
        missed = now_us - known.last_us > life_s * 1e6 if read is None else not read
        if missed:
            known.missed_us.append(now_us)
        known.tokens, known.last_us = head.tokens, now_us
        if known.latest is None:
            known.latest = latest()

    def keep(self, name: int, stored: Stored | None) -> None:
        """It was stored, or stored for longer; None: it is not there any more."""
        self.take([(name, stored or Stored("", 0))])
        if self.fresh is not None:
            self.fresh[name] = stored or Stored("", 0)

    def take(self, pairs: Iterable[tuple[int, Stored]]) -> None:
        """What another process has stored, or let go."""
        for name, (found, until_us) in pairs:
            if found:
                self.stored[name] = Stored(found, until_us)
            else:
                self.stored.pop(name, None)
