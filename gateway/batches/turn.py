"""Whose turn it is to work the queue off: one process of a machine's, or of all replicas' that share one."""
from __future__ import annotations

import asyncio
import fcntl
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.ledger.sql import async_url, waits

_AGAIN_S, _LOOK_S = 5.0, 5.0
_KEY = 0x746F6C6C  # of the advisory lock
_TAKE, _LOOK = text(f"SELECT pg_try_advisory_lock({_KEY})"), text("SELECT 1")


class Turn(Protocol):
    """Ends with the process, however that ends."""

    async def take(self) -> None:
        """Returns once no other process has it."""

    async def held(self) -> bool:
        """Whether it is ours still."""

    async def close(self) -> None: ...


class FileTurn:
    """A lock on a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    async def take(self) -> None:
        self._file = self._file or open(self._path, "a", encoding="ascii")  # noqa: ASYNC230, SIM115  (as long as the lock is)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                await asyncio.sleep(_AGAIN_S)

    async def held(self) -> bool:
        return True

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()


class PostgresTurn:
    """An advisory lock, held by a connection of its own: the server gives it to another replica when that breaks."""

    def __init__(self, url: str) -> None:
        how = waits(url)
        self._engine = create_async_engine(async_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=how)
        self._connection: AsyncConnection | None = None
        self._looked_s = 0.0

    async def take(self) -> None:
        while True:
            await self._let_go()
            with suppress(DBAPIError, OSError, TimeoutError):
                self._connection = await self._engine.connect()
                if (await self._connection.execute(_TAKE)).scalar():
                    self._looked_s = time.monotonic()
                    return
            await self._let_go()
            await asyncio.sleep(_AGAIN_S)

    async def held(self) -> bool:
        """Asks the server, but not at every turn of the queue."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return True
        try:
            assert self._connection is not None
            await self._connection.execute(_LOOK)
        except (DBAPIError, OSError, TimeoutError):
            return False
        self._looked_s = time.monotonic()
        return True

    async def close(self) -> None:
        await self._let_go()
        await self._engine.dispose()

    async def _let_go(self) -> None:
        if self._connection is not None:
            with suppress(DBAPIError, OSError, TimeoutError):
                await self._connection.close()
            self._connection = None
