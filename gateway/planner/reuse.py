"""How soon, if at all, a prefix of some kind is asked for again: learnt from our own calls, with priors and decay.

A kind is what ends there: the tools, the system prompt, a conversation's first request, a later one. For each kind, per
client and per app, we keep how long it took until a prefix came again, and how long those wait that have not come yet. The
chance that it comes within t is q * F(t): q, whether it comes at all, F, how soon if it does. A prefix that has waited for t
counts against q only as much as F(t) says it should have been there by now. An app's figures start from its client's, and
those from the prior.
"""
from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EDGES_S = (10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 43_200.0)
"""Ends of the classes of waiting time; each lifetime of a cache is one of them."""
_ENDLESS = len(EDGES_S)
_SOON = (0.30, 0.60, 0.85, 0.90, 0.95, 0.97, 1.0)
_SURELY = {"tools": 0.8, "system": 0.8, "head": 0.8, "turn": 0.85, "slow": 0.7, "opening": 0.6, "before": 0.6, "branch": 0.8}
_PRIOR_WEIGHT, _CLIENT_WEIGHT = 2.0, 4.0
_MOST_SEEN = 512.0
"""Older experience counts half each time this many outcomes are reached."""


@dataclass(frozen=True, slots=True)
class Chance:
    """`surely`: that it comes again at all; `soon[i]`: that it then comes within `EDGES_S[i]`."""

    surely: float
    soon: tuple[float, ...]

    def within(self, seconds: float) -> float:
        """The chance that it comes again within one of `EDGES_S`."""
        return self.surely * self.soon[EDGES_S.index(seconds)]


PRIORS: Mapping[str, Chance] = {kind: Chance(surely, _SOON) for kind, surely in _SURELY.items()}


class Reuse:
    """What was seen of one kind of prefix."""

    __slots__ = ("_chance", "_changes", "_prior", "came", "lost", "waiting")

    def __init__(self) -> None:
        self.came = [0.0] * _ENDLESS
        self.waiting = [0] * (_ENDLESS + 1)
        self.lost = 0.0
        self._chance: Chance | None = None
        self._prior: Chance | None = None
        self._changes = 0

    def chance(self, prior: Chance, weight: float) -> Chance:
        """Worked out anew when enough has changed to matter."""
        if self._chance is None or prior is not self._prior or self._changes * 32 > sum(self.came) + self.lost:
            self._chance, self._prior, self._changes = self._work_out(prior, weight), prior, 0
        return self._chance

    def _work_out(self, prior: Chance, weight: float) -> Chance:
        came = sum(self.came)
        soon, so_far = [], 0.0
        for count, before in zip(self.came, prior.soon, strict=True):
            so_far += count
            soon.append((so_far + weight * before) / (came + weight))
        overdue = self.lost
        for place, waiting in enumerate(self.waiting):
            if waiting and place:
                overdue += waiting * (soon[place - 1] + soon[min(place, _ENDLESS - 1)]) / 2
        surely = (came + weight * prior.surely) / (came + overdue + weight)
        return Chance(surely, tuple(soon))

    def add(self, place: int) -> None:
        """One came again after a wait of that class."""
        self.came[place] += 1
        self._changes += 1
        if sum(self.came) + self.lost > _MOST_SEEN:
            self.came = [count / 2 for count in self.came]
            self.lost /= 2

    def move(self, place: int, to: int | None) -> None:
        """A prefix that waits has grown older; `to` None: nobody waits for it any more."""
        self.waiting[place] -= 1
        self._changes += 1
        if to is not None:
            self.waiting[to] += 1


@dataclass(slots=True)
class _Waiting:
    since_us: int
    by_app: Reuse
    by_client: Reuse
    place: int = 0


class ReuseBook:
    """All kinds of all apps; bounded, oldest out first."""

    def __init__(self, most_prefixes: int = 50_000, most_kinds: int = 8_192) -> None:
        self._most_prefixes, self._most_kinds = most_prefixes, most_kinds
        self._kinds: OrderedDict[tuple[str, ...], Reuse] = OrderedDict()
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._ages: list[deque[tuple[int, int]]] = [deque() for _ in EDGES_S]

    def chance(self, kind: str, client: tuple[str, ...], app: str) -> Chance:
        """For a prefix of this kind, now."""
        of_client = self._kind((kind, *client)).chance(PRIORS[kind], _PRIOR_WEIGHT)
        return self._kind((kind, *client, app)).chance(of_client, _CLIENT_WEIGHT)

    def came(self, keys: Sequence[int], now_us: int) -> tuple[int, float]:
        """Notes that these prefixes were asked for; the deepest one known (-1: none), and how long it had waited, seconds."""
        self._grow_old(now_us)
        deepest, waited_s = -1, 0.0
        waiting = self._waiting
        for index, key in enumerate(keys):
            if key not in waiting:
                continue
            known = waiting.pop(key)
            deepest, waited_s = index, (now_us - known.since_us) / 1e6
            for reuse in (known.by_app, known.by_client):
                reuse.move(known.place, None)
                reuse.add(min(known.place, _ENDLESS - 1))
        return deepest, waited_s

    def wait_for(self, key: int, kind: str, client: tuple[str, ...], app: str, now_us: int) -> None:
        """From now on this prefix may come again."""
        known = _Waiting(now_us, self._kind((kind, *client, app)), self._kind((kind, *client)))
        old = self._waiting.pop(key, None)
        if old is not None:
            self._drop(old)
        self._waiting[key] = known
        known.by_app.waiting[0] += 1
        known.by_client.waiting[0] += 1
        self._ages[0].append((now_us, key))
        if len(self._waiting) > self._most_prefixes:
            self._drop(self._waiting.popitem(last=False)[1])

    def _kind(self, name: tuple[str, ...]) -> Reuse:
        reuse = self._kinds.get(name)
        if reuse is None:
            reuse = self._kinds[name] = Reuse()
            if len(self._kinds) > self._most_kinds:
                self._kinds.popitem(last=False)
        return reuse

    def _drop(self, waiting: _Waiting) -> None:
        for reuse in (waiting.by_app, waiting.by_client):
            reuse.move(waiting.place, None)

    def _grow_old(self, now_us: int) -> None:
        for place, edge_s in enumerate(EDGES_S):
            ages, until_us = self._ages[place], now_us - int(edge_s * 1e6)
            while ages and ages[0][0] <= until_us:
                since_us, key = ages.popleft()
                known = self._waiting.get(key)
                if known is None or known.since_us != since_us or known.place != place:
                    continue
                self._older(key, known, place + 1)

    def _older(self, key: int, known: _Waiting, place: int) -> None:
        last = place == _ENDLESS
        for reuse in (known.by_app, known.by_client):
            reuse.move(known.place, None if last else place)
            reuse.lost += last
        known.place = place
        if last:
            del self._waiting[key]
        else:
            self._ages[place].append((known.since_us, key))
