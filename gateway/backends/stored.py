"""What providers keep for clients, and which backend keeps it: answers that a later call goes on from, files, batches.

Providers know one key, ours, so without this any team could read what another one stored. The latest are in memory; all are
written to the database at once, or with the next few, so that other processes and later starts know them: `recall` looks there.
What nobody stored through us is left to the provider to find.
"""
from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from gateway.core import clock
from gateway.core.errors import NotFound, Overloaded

MOST = 100_000
WRITE_S, PRUNE_S = 0.1, 3_600.0
_WAITING = 20_000
_LONGEST = 256
"""No provider's ids are longer."""
_log = logging.getLogger("tollway.stored")


class Thing(Protocol):
    """A stored thing as the shelf gives it back."""

    @property
    def team(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def tokens(self) -> int | None: ...


class Shelf(Protocol):
    """The database's part; see `MemoryTable`."""

    async def note(self, things: Sequence[tuple[str, str, str, int | None]]) -> None:
        """Id, team, backend and tokens of each. Raises where the database is away."""

    async def find(self, name: str) -> Thing | None: ...

    async def prune(self, now_us: int) -> None: ...


class Stored:
    """Id -> (team, backend, tokens); the oldest is forgotten first. `start` and `close` where there is a shelf."""

    def __init__(self, shelf: Shelf | None = None, most: int = MOST) -> None:
        self._shelf, self._most = shelf, most
        self._kept: OrderedDict[str, tuple[str, str, int | None]] = OrderedDict()
        self._waiting: OrderedDict[str, tuple[str, str, int | None]] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write(), name="stored-writer")

    async def close(self) -> None:
        """Writes what still waits, if the database takes it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._flush()

    def keep(self, name: str, team: str, backend: str, tokens: int | None = None) -> None:
        """`tokens`: of an answer, with all that it goes on from."""
        if len(name) > _LONGEST:
            return
        self._remember(name, team, backend, tokens)
        if self._shelf is not None:
            self._waiting[name] = team, backend, tokens
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)
            self._wake.set()

    async def recall(self, name: str) -> None:
        """Looks up what is not in memory. Raises `Overloaded` where that cannot be done: it might be another team's."""
        if name in self._kept or self._shelf is None:
            return
        try:
            found = await self._shelf.find(name)
        except Exception as error:
            refusal = Overloaded("whose it is cannot be looked up right now", retry_after_s=5)
            refusal.code = "database_unavailable"
            raise refusal from error
        if found is not None:
            self._remember(name, found.team, found.backend, found.tokens)

    def backend(self, name: str, team: str, *, param: str | None = None) -> str | None:
        """Who keeps it; None where that is not known. Raises `NotFound` for what another team stored."""
        found = self._kept.get(name)
        if found is None:
            return None
        if found[0] != team:
            raise NotFound(f"there is no {name[:100]!r} of your team", param=param)
        return found[1]

    def tokens(self, name: str) -> int | None:
        """Of a stored answer and all that it goes on from; None where nobody saw it."""
        found = self._kept.get(name)
        return None if found is None else found[2]

    def _remember(self, name: str, team: str, backend: str, tokens: int | None) -> None:
        self._kept[name] = (team, backend, tokens)
        self._kept.move_to_end(name)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    async def _write(self) -> None:
        pruned_s = -PRUNE_S
        while True:
            await self._wake.wait()
            if not await self._flush():
                await asyncio.sleep(1.0)
            elif time.monotonic() - pruned_s > PRUNE_S and self._shelf is not None:
                pruned_s = time.monotonic()
                await self._shelf.prune(clock.now_us())
            await asyncio.sleep(WRITE_S)  # not before: the next turn may come at once, to another process

    async def _flush(self) -> bool:
        self._wake.clear()
        batch = [(name, *kept) for name, kept in self._waiting.items()]
        if not batch or self._shelf is None:
            return True
        try:
            await self._shelf.note(batch)
        except Exception as error:
            _log.warning("stored answers are known in this process only until the database is back (%s)", type(error).__name__)
            self._wake.set()
            return False
        for name, *kept in batch:
            if self._waiting.get(name) == tuple(kept):
                del self._waiting[name]
        return True
