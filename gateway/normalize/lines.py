"""Lines of the system prompts that came lately, described once: a conversation has the same in all its turns."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gateway.core.patterns import Described, described


class Lines:
    """Holds no text. Bounded by lines, least recently used out first; 65,536 of them take about a megabyte."""

    def __init__(self, most: int = 65_536) -> None:
        self._most, self._lines = most, 0
        self._known: OrderedDict[int, Described] = OrderedDict()

    def __len__(self) -> int:
        return self._lines

    def look(self, domain: str, lines: Sequence[str]) -> Described:
        name = hash((domain, *lines))
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known
        fresh = self._known[name] = described(lines)
        self._lines += len(fresh.names)
        while self._lines > self._most and len(self._known) > 1:
            self._lines -= len(self._known.popitem(last=False)[1].names)
        return fresh


LINES = Lines()
"""What follows from a text alone; by isolation domain, so that it takes nobody less time because others have sent it."""
