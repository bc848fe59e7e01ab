"""Who goes first when room lacks: the oldest of whoever has more than a fair share, else the oldest of all."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K", int, bytes)


class FairOrder(Generic[K]):
    """Keys with their salts (teams, behind the gateway), oldest first. `most` keys of one salt are its fair share."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._all: OrderedDict[K, None] = OrderedDict()
        self._of: dict[str, OrderedDict[K, None]] = defaultdict(OrderedDict)
        self._greedy: set[str] = set()  # salts with more than their share

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[K]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._all)

    def add(self, key: K, salt: str) -> None:
        """The newest."""
        self._all[key] = self._of[salt][key] = None
        self._weigh(salt)

    def remove(self, key: K, salt: str) -> None:
        """It is in use, or gone."""
        del self._all[key], self._of[salt][key]
        self._weigh(salt)

    def victim(self) -> K:
        """Who goes first. Raises `StopIteration` where nobody is there."""
        return next(iter(self._of[next(iter(self._greedy))] if self._greedy else self._all))

    def clear(self) -> None:
        """Forget all."""
        for store in (self._all, self._of, self._greedy):
            store.clear()

    def _weigh(self, salt: str) -> None:
        count = len(self._of[salt])
        if count > self._most:
            self._greedy.add(salt)
        else:
            self._greedy.discard(salt)
        if not count:
            del self._of[salt]
