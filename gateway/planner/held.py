"""What we have had stored where, and until when: the prefixes that our own marks wrote. Bounded, oldest out first."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

_LATELY_US = 43_200_000_000
"""As long as the longest lifetime of a stored prefix."""


_WRITING_US = 10_000_000


class Seen:
    """Prefixes that were sent before, stored or not: where two prompts part is where a third may want to read."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._keys: OrderedDict[int, None] = OrderedDict()
        self._talks: OrderedDict[str, int] = OrderedDict()
        """Conversation -> when its last turn came, microseconds."""

    def deepest(self, keys: Sequence[int]) -> int:
        """Index of the longest of these prefixes that was sent before (-1: none), and notes them all as sent."""
        known = self._keys
        index = len(keys) - 1
        while index >= 0 and keys[index] not in known:
            index -= 1
        for key in keys[index + 1 :]:
            known[key] = None
        for key in keys[: index + 1]:
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._most:
            known.popitem(last=False)
        return index

    def talk(self, session: str, now_us: int) -> bool:
        """Whether a turn of that conversation was sent lately, and notes that one was now; never for one without a name."""
        if not session:
            return False
        before = self._talks.pop(session, None)
        self._talks[session] = now_us
        if len(self._talks) > self._most:
            self._talks.popitem(last=False)
        return before is not None and now_us - before < _LATELY_US


class Held:
    """Stored prefixes by pool; a pool is what shares one cache."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._until: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """Name of a prefix in a pool -> when it is gone (0: it was not there), how long it lives after each use."""
        self.fresh: dict[int, tuple[int, float]] | None = None

    def __len__(self) -> int:
        return len(self._until)

    def deepest(self, pool: str, keys: Sequence[int], now_us: int) -> int:
        """Index of the longest of these prefixes that is still stored; -1: none."""
        root = _root(pool)
        for index in range(len(keys) - 1, -1, -1):
            known = self._until.get(keys[index] ^ root)
            if known is not None and known[0] > now_us:
                return index
        return -1

    def has(self, pool: str, key: int, now_us: int) -> bool:
        known = self._until.get(key ^ _root(pool))
        return known is not None and known[0] > now_us

    def life_s(self, pool: str, key: int) -> float:
        """How long a stored prefix lives after each use; 0: it is not known."""
        known = self._until.get(key ^ _root(pool))
        return 0.0 if known is None else known[1]

    def store(self, pool: str, key: int, now_us: int, life_s: float) -> None:
        """It was written, or read: its own lifetime starts again, and `life_s` is that of one which is new."""
        name = key ^ _root(pool)
        known = self._until.get(name)
        if known is not None and known[0] > now_us:
            life_s = known[1]
        self._put(name, (now_us + int(life_s * 1e6), life_s))
        if self.fresh is not None:
            self.fresh[name] = self._until[name]

    def forget(self, pool: str, key: int) -> None:
        """The provider did not have it, whatever we thought."""
        name = key ^ _root(pool)
        self._until.pop(name, None)
        if self.fresh is not None:
            self.fresh[name] = (0, 0.0)

    def take(self, pairs: Iterable[tuple[int, tuple[int, float]]]) -> None:
        """What another process had stored, or did not find."""
        for name, known in pairs:
            if not known[0]:
                self._until.pop(name, None)
            elif known[0] > self._until.get(name, (0, 0.0))[0]:
                self._put(name, known)

    def _put(self, name: int, known: tuple[int, float]) -> None:
        self._until[name] = known
        self._until.move_to_end(name)
        if len(self._until) > self._most:
            self._until.popitem(last=False)


class Writing:
    """Prefixes that other processes said they are writing; after some seconds it is forgotten, whatever became of it."""

    def __init__(self) -> None:
        self._until: OrderedDict[int, int] = OrderedDict()
        self.fresh: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self._until)

    def tell(self, names: Iterable[int], now_us: int) -> None:
        """They are written here."""
        if self.fresh is not None:
            self.fresh.update(dict.fromkeys(names, now_us + _WRITING_US))

    def has(self, name: int, now_us: int) -> bool:
        """Whether it is written elsewhere."""
        return self._until.get(name, 0) > now_us

    def take(self, pairs: Iterable[tuple[int, int]]) -> None:
        for name, until_us in pairs:
            self._until[name] = until_us
            self._until.move_to_end(name)
            while next(iter(self._until.values())) <= until_us - _WRITING_US:
                self._until.popitem(last=False)


def name_of(pool: str, key: int) -> int:
    """Of a prefix in a pool, to all processes."""
    return key ^ _root(pool)


@lru_cache(1_024)
def _root(pool: str) -> int:
    return int.from_bytes(blake2b(pool.encode("utf-8", "replace"), digest_size=8).digest()) >> 4
