"""Calls that come together with a cold prefix in common: one writes it, the others wait until it can be read.

A provider makes a prefix readable when the answer that wrote it has begun; before that, every call with it pays for it in
full. So whoever comes first leads, and who shares a prefix with a leader waits for its first token, but never longer than
that is worth.
"""
from __future__ import annotations

import asyncio
from collections.abc import Iterable

Key = tuple[str, int]
"""Pool and key of a prefix."""


class Leader:
    """An attempt that is writing prefixes right now."""

    __slots__ = ("_begun", "keys")

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)
        self._begun = asyncio.Event()

    def begun(self) -> None:
        """Its answer has begun, or never will."""
        self._begun.set()

    async def wait(self, most_s: float) -> bool:
        """Until it has begun; False: not in that time."""
        try:
            async with asyncio.timeout(most_s):
                await self._begun.wait()
        except TimeoutError:
            return False
        return True


class Cohorts:
    """Leaders by what they write."""

    def __init__(self) -> None:
        self._writing: dict[Key, Leader] = {}

    def __len__(self) -> int:
        return len(self._writing)

    def writer(self, key: Key) -> Leader | None:
        return self._writing.get(key)

    def lead(self, keys: Iterable[Key]) -> Leader:
        """Leads for those prefixes that nobody writes yet. `end` has to be called."""
        leader = Leader(key for key in keys if key not in self._writing)
        self._writing.update(dict.fromkeys(leader.keys, leader))
        return leader

    def end(self, leader: Leader) -> None:
        """Whoever waits goes on."""
        leader.begun()
        for key in leader.keys:
            if self._writing.get(key) is leader:
                del self._writing[key]
