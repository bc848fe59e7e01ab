"""The last answer of each conversation at each pool, by the provider's name for it: what the next prompt is compared with
when the provider is asked why its cache missed. Bounded, oldest out first."""
from __future__ import annotations

from collections import OrderedDict


class Answers:
    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()

    def last(self, pool: str, session: str) -> str | None:
        """None: none is known."""
        return self._last.get((pool, session))

    def keep(self, pool: str, session: str, answer: str | None) -> None:
        """Nothing is kept of an answer, or a conversation, without a name."""
        if not answer or not session:
            return
        self._last[pool, session] = answer
        self._last.move_to_end((pool, session))
        if len(self._last) > self._most:
            self._last.popitem(last=False)
