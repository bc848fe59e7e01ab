"""What we have had stored where, and until when: the prefixes that our own marks wrote. Bounded, oldest out first."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Seen:
    """Prefixes that were sent before, stored or not: where two prompts part is where a third may want to read."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._keys: OrderedDict[int, None] = OrderedDict()

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


class Held:
    """Stored prefixes by pool; a pool is what shares one cache."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._until: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def deepest(self, pool: str, keys: Sequence[int], now_us: int) -> int:
        """Index of the longest of these prefixes that is still stored; -1: none."""
        for index in range(len(keys) - 1, -1, -1):
            known = self._until.get((pool, keys[index]))
            if known is not None and known[0] > now_us:
                return index
        return -1

    def has(self, pool: str, key: int, now_us: int) -> bool:
        known = self._until.get((pool, key))
        return known is not None and known[0] > now_us

    def life_s(self, pool: str, key: int) -> float:
        """How long a stored prefix lives after each use; 0: it is not known."""
        known = self._until.get((pool, key))
        return 0.0 if known is None else known[1]

    def store(self, pool: str, key: int, now_us: int, life_s: float) -> None:
        """It was written, or read: its own lifetime starts again, and `life_s` is that of one which is new."""
        known = self._until.pop((pool, key), None)
        if known is not None and known[0] > now_us:
            life_s = known[1]
        self._until[pool, key] = (now_us + int(life_s * 1e6), life_s)
        if len(self._until) > self._most:
            self._until.popitem(last=False)

    def forget(self, pool: str, key: int) -> None:
        """The provider did not have it, whatever we thought."""
        self._until.pop((pool, key), None)
