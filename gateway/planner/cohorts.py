"""Calls that come together with a cold prefix in common: one writes it, the others wait until it can be read.

A provider makes a prefix readable when the answer that wrote it has begun; before that, every call with it pays for it in
full. So whoever comes first leads, and who shares a prefix with a leader waits for its first token, but never longer than
that is worth (`fan_out.py`). Names are those of prefixes in a pool (`held.name_of`).
"""
from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

Ended = Literal["begun", "gone", "late"]
"""How waiting for a leader ended: its answer has begun, it failed before that, or neither came in time."""


class Joined(NamedTuple):
    """What other processes say of a call's cold prefixes: it leads for them all (`at` -1), or the prefix at `at` was being
    written, and how waiting for that has ended."""

    at: int
    ended: Ended = "late"


class Others(Protocol):
    """The cohorts of several processes as one. None of it raises, but `join` for a caller that is cancelled."""

    async def join(self, lead: int, cold: Sequence[tuple[int, float]]) -> Joined:
        """`cold`: names in rendered order, each with the seconds that waiting for it is worth. Whoever leads says so when its
        answer has begun, and in any case when it has ended; `lead` names that of this process."""

    def begun(self, lead: int) -> None: ...

    def end(self, lead: int) -> None: ...


class Leader:
    """An attempt that is writing prefixes right now."""

    __slots__ = ("_ended", "_over", "names")

    def __init__(self, names: Iterable[int]) -> None:
        self.names = tuple(names)
        self._ended: Ended = "late"
        self._over = asyncio.Event()

    def over(self, ended: Ended) -> None:
        """The first word counts."""
        if not self._over.is_set():
            self._ended = ended
            self._over.set()

    async def wait(self, most_s: float) -> Ended:
        """Until it has begun or failed, but no longer than that."""
        try:
            async with asyncio.timeout(most_s):
                await self._over.wait()
        except TimeoutError:
            return "late"
        return self._ended


class Cohorts:
    """Leaders by what they write."""

    def __init__(self) -> None:
        self._writing: dict[int, Leader] = {}

    def __len__(self) -> int:
        return len(self._writing)

    def writer(self, name: int) -> Leader | None:
        return self._writing.get(name)

    def lead(self, names: Iterable[int]) -> Leader:
        """Leads for those prefixes that nobody writes yet. `begun` or `end` has to be called."""
        leader = Leader(name for name in names if name not in self._writing)
        self._writing.update(dict.fromkeys(leader.names, leader))
        return leader

    def begun(self, leader: Leader) -> None:
        """What it writes can be read: whoever waits goes on."""
        self._let_go(leader, "begun")

    def end(self, leader: Leader) -> None:
        """It writes no more, whether it has begun or not."""
        self._let_go(leader, "gone")

    def _let_go(self, leader: Leader, ended: Ended) -> None:
        leader.over(ended)
        for name in leader.names:
            if self._writing.get(name) is leader:
                del self._writing[name]
