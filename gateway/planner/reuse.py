"""How soon, if at all, a prefix of some kind is asked for again: learnt from our own calls, with priors and decay.

A kind is what ends there: the tools, the system prompt, a conversation's first request, a later one. For each kind, per
client, per size of the piece and per app, we count in classes of waiting time how many came again in each and how many
outlived it: the share of those who waited so long is the chance of a class (Kaplan and Meier), so that a prefix which has not
come yet counts for exactly as long as it has waited. An app's figures start from those of its client's pieces of that size,
those from the client's, and those from the prior.
"""
from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

EDGES_S = (10.0, 30.0, 60.0, 120.0, 200.0, 300.0, 600.0, 1800.0, 3600.0, 43_200.0)
"""Ends of the classes of waiting time; each lifetime of a cache is one of them. Below the shortest they are narrow, so that of
what waits it counts soon that it has not come."""
_ENDLESS = len(EDGES_S)
_SOON = (0.30, 0.46, 0.60, 0.72, 0.80, 0.85, 0.90, 0.95, 0.97, 1.0)
_SURELY = {
    "tools": 0.8, "system": 0.8, "head": 0.8, "opening": 0.6, "turn": 0.85, "slow": 0.7, "before": 0.6, "before_turn": 0.85,
    "before_slow": 0.7, "again": 0.85, "often": 0.85,
}  # fmt: skip
"""By kind (`places.py`): what a client's prefixes are taken for until it is known better."""
_PRIOR_WEIGHT, _CLIENT_WEIGHT = 2.0, 8.0
_DOUBTFULLY = 0.05
_SIZES = tuple(map(str, range(64)))
"""Classes of size, each twice the one before: what is long tends to come again more, or less, than what is short."""
_MOST_SEEN = 512.0
"""Older experience counts half each time this many outcomes are reached."""


@dataclass(frozen=True, slots=True)
class Chance:
    """`within_s[i]`: that it comes again within `EDGES_S[i]`."""

    within_s: tuple[float, ...]

    def within(self, seconds: float) -> float:
        """The chance that it comes again within one of `EDGES_S`."""
        return self.within_s[EDGES_S.index(seconds)]

    def by(self, seconds: float) -> float:
        """The same for any time, evenly in between."""
        before_s, before = 0.0, 0.0
        for edge_s, chance in zip(EDGES_S, self.within_s, strict=True):
            if seconds <= edge_s:
                return before + (chance - before) * (seconds - before_s) / (edge_s - before_s)
            before_s, before = edge_s, chance
        return before

    @property
    def ever(self) -> float:
        """The chance that it comes again at all."""
        return self.within_s[-1]


PRIORS: Mapping[str, Chance] = {
    kind: Chance(tuple(surely * soon for soon in _SOON)) for kind, surely in _SURELY.items()
}
DOUBTS: Mapping[str, Chance] = dict.fromkeys(PRIORS, Chance(tuple(_DOUBTFULLY * soon for soon in _SOON)))
"""A prior below every break-even: first it has to be seen that anything comes again."""


_WARILY = 0.7
WARY: Mapping[str, Chance] = dict.fromkeys(PRIORS, Chance(tuple(_WARILY * soon for soon in _SOON)))
"""Where a cache works unasked: what a beginner thinks likely should not be worth leaving it for."""


class Whose(NamedTuple):
    """Whose experience counts, and what is thought before there is any."""

    client: str
    app: str
    prior: Mapping[str, Chance] = PRIORS


class Reuse:
    """What was seen of one kind of prefix: per class of waiting time how many came in it, how many outlived it, and how many
    are in it now."""

    __slots__ = ("_chance", "_changes", "_prior", "came", "outlived", "waiting")

    def __init__(self) -> None:
        self.came = [0.0] * _ENDLESS
        self.outlived = [0.0] * _ENDLESS
        self.waiting = [0] * (_ENDLESS + 1)
        self._chance: Chance | None = None
        self._prior: Chance | None = None
        self._changes = 0

    def chance(self, prior: Chance, weight: float) -> Chance:
        """Worked out anew when enough has changed to matter. The prior counts as `weight` prefixes."""
        if self._chance is None or prior is not self._prior or self._changes * 32 > self._seen():
            self._chance, self._prior, self._changes = self._work_out(prior, weight), prior, 0
        return self._chance

    def _work_out(self, prior: Chance, weight: float) -> Chance:
        """Kaplan and Meier's estimate: class by class, the share of those who waited so long that did not come in it."""
        stays, before, within = 1.0, 0.0, []
        for came, outlived, waiting, until in zip(self.came, self.outlived, self.waiting, prior.within_s, strict=False):
            asked = outlived + waiting / 2 + weight * (1 - until)
            arrived = came + weight * (until - before)
            stays *= asked / (asked + arrived) if asked + arrived > 0 else 1.0
            before = until
            within.append(1 - stays)
        return Chance(tuple(within))

    def add(self, place: int) -> None:
        """One came again after a wait of that class."""
        self.came[place] += 1
        self._changes += 1
        if self._seen() > _MOST_SEEN:
            self.came = [count / 2 for count in self.came]
            self.outlived = [count / 2 for count in self.outlived]

    def move(self, place: int, to: int | None) -> None:
        """A prefix that waits has outlived its class; `to` None: nobody waits for it any more."""
        self.waiting[place] -= 1
        self._changes += 1
        if to is not None:
            self.outlived[place] += 1
            self.waiting[to] += 1

    def _seen(self) -> float:
        return sum(self.came) + self.outlived[-1]


@dataclass(slots=True)
class _Waiting:
    since_us: int
    kind: str
    levels: tuple[Reuse, ...]
    place: int = 0


@dataclass(frozen=True, slots=True)
class Came:
    """Which of a prompt's prefixes were waited for: the deepest one (-1: none), how long it had waited, seconds, and what each
    was taken for."""

    deepest: int = -1
    waited_s: float = 0.0
    kinds: Mapping[int, str] = field(default_factory=dict)


Event = tuple[int, str, str, str, int, int]
"""A prefix's key, its kind ("": it came), client, app, tokens, and when, in microseconds."""


class ReuseBook:
    """All kinds of all apps; bounded, oldest out first."""

    def __init__(self, most_prefixes: int = 50_000, most_kinds: int = 16_384) -> None:
        self._most_prefixes, self._most_kinds = most_prefixes, most_kinds
        self._kinds: OrderedDict[tuple[str, ...], Reuse] = OrderedDict()
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._ages: list[deque[tuple[int, int]]] = [deque() for _ in EDGES_S]
        self.fresh: dict[int, Event] | None = None
        self._told = 0

    def chance(self, kind: str, whose: Whose, tokens: int) -> Chance:
        """For the last `tokens` of a prefix of this kind, now."""
        of_client, of_size, of_app = self._levels(kind, whose.client, whose.app, tokens)
        known = of_size.chance(of_client.chance(whose.prior[kind], _PRIOR_WEIGHT), _CLIENT_WEIGHT)
        return of_app.chance(known, _CLIENT_WEIGHT)

    def came(self, keys: Sequence[int], now_us: int) -> Came:
        """Notes that these prefixes were asked for."""
        self._grow_old(now_us)
        deepest, waited_s, kinds = -1, 0.0, dict[int, str]()
        waiting = self._waiting
        for index, key in enumerate(keys):
            if key not in waiting:
                continue
            known = waiting[key]
            self._arrived(key)
            self._tell(key, "", "", "", 0, now_us)
            deepest, waited_s, kinds[key] = index, (now_us - known.since_us) / 1e6, known.kind
        return Came(deepest, waited_s, kinds)

    def wait_for(self, key: int, kind: str, whose: Whose, tokens: int, now_us: int) -> None:
        """From now on this prefix may come again; `tokens` are those that it has more than the place before it."""
        self._tell(key, kind, whose.client, whose.app, tokens, now_us)
        self._wait(_Waiting(now_us, kind, self._levels(kind, whose.client, whose.app, tokens)), key)

    def take(self, pairs: Iterable[tuple[int, Event]]) -> None:
        """What other processes were asked for, and what they wait for since."""
        for _, (key, kind, client, app, tokens, at_us) in pairs:
            self._grow_old(at_us)
            if kind in PRIORS:
                self._wait(_Waiting(at_us, kind, self._levels(kind, client, app, tokens)), key)
            elif key in self._waiting:
                self._arrived(key)

    def _tell(self, *event: *Event) -> None:
        if self.fresh is not None:
            self._told += 1
            self.fresh[self._told] = event

    def _arrived(self, key: int) -> None:
        known = self._waiting.pop(key)
        for reuse in known.levels:
            reuse.move(known.place, None)
            reuse.add(min(known.place, _ENDLESS - 1))

    def _wait(self, known: _Waiting, key: int) -> None:
        old = self._waiting.pop(key, None)
        if old is not None:
            self._drop(old)
        self._waiting[key] = known
        for reuse in known.levels:
            reuse.waiting[0] += 1
        self._ages[0].append((known.since_us, key))
        if len(self._waiting) > self._most_prefixes:
            self._drop(self._waiting.popitem(last=False)[1])

    def _levels(self, kind: str, client: str, app: str, tokens: int) -> tuple[Reuse, Reuse, Reuse]:
        """What is known of the kind at the client, of pieces of about that size there, and of those at the app."""
        size = _SIZES[tokens.bit_length()]
        return self._kind((kind, client)), self._kind((kind, client, size)), self._kind((kind, client, size, app))

    def _kind(self, name: tuple[str, ...]) -> Reuse:
        reuse = self._kinds.get(name)
        if reuse is None:
            reuse = self._kinds[name] = Reuse()
            if len(self._kinds) > self._most_kinds:
                self._kinds.popitem(last=False)
        return reuse

    def _drop(self, waiting: _Waiting) -> None:
        for reuse in waiting.levels:
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
        for reuse in known.levels:
            reuse.move(known.place, place)
            if last:
                reuse.move(place, None)
        known.place = place
        if last:
            del self._waiting[key]
        else:
            self._ages[place].append((known.since_us, key))
