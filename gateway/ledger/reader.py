"""The read-only way into a ledger's database, and what to say when it is shut.

SQLite is opened read-only anew for each report (0.2 ms), so a file that was moved or made again is noticed. PostgreSQL is
reached by the same driver as the writer, on an event loop in a thread of its own, because reports are plain functions. All
statements of one `read` see one moment of the database.
"""
from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

import orjson
from sqlalchemy import Connection, CursorResult, Executable, create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from gateway.ledger.rollup_tables import STATE
from gateway.ledger.sql import CONNECT_S, async_url, waits

Rows = list[dict[str, Any]]
Why = Literal["missing", "locked", "schema", "away"]
SERVER_SETTINGS = {"default_transaction_read_only": "on", "jit": "off", "work_mem": "64MB"}
"""Compiling takes longer than the statements do; sums by run fit into the memory."""
_ROLLED_TO = select(STATE.c.seq)
STATEMENT_S = 20
"""Longest that one statement on PostgreSQL may take."""


class LedgerUnavailable(Exception):
    """The ledger cannot be read at the moment; the text says what to do and names no address."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of the database. `rolled_to`: the place in the ledger up to which the roll-ups hold it. As a number in a
    statement it tells PostgreSQL that few entries came since; a sub-query's value it would take for a third of the ledger."""

    dialect: str
    rolled_to: int


Make = Callable[[Moment], Sequence[Executable]]


class Reader(Protocol):
    dialect: str

    def read(self, *statements: Executable) -> list[Rows]: ...

    def read_at(self, make: Make) -> list[Rows]: ...

    def close(self) -> None: ...


def reader(url: str) -> Reader:
    parsed = async_url(url)
    return SqliteReader(Path(parsed.database or "")) if parsed.get_backend_name() == "sqlite" else PostgresReader(url)


class SqliteReader:
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = create_engine("sqlite://", creator=self._open, poolclass=NullPool, json_deserializer=orjson.loads)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True, timeout=2, isolation_level=None)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def read(self, *statements: Executable) -> list[Rows]:
        with self._moment() as connection:
            return [_rows(connection.execute(statement)) for statement in statements]

    def read_at(self, make: Make) -> list[Rows]:
        with self._moment() as connection:
            now = Moment(self.dialect, connection.execute(_ROLLED_TO).scalar() or 0)
            return [_rows(connection.execute(statement)) for statement in make(now)]

    @contextlib.contextmanager
    def _moment(self) -> Iterator[Connection]:
        if not self._path.is_file():
            raise LedgerUnavailable("missing", "There is no ledger yet. Start the gateway (tollway up): it makes one.")
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("BEGIN")
                yield connection
        except DBAPIError as error:
            raise _explained(error) from error

    def close(self) -> None:
        self._engine.dispose()


class PostgresReader:
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(
            async_url(url),
            pool_size=4,
            pool_pre_ping=True,
            json_deserializer=orjson.loads,
            isolation_level="REPEATABLE READ",
            connect_args={**waits(url, CONNECT_S, STATEMENT_S), "server_settings": SERVER_SETTINGS},
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ledger-reader", daemon=True)
        self._thread.start()

    def read(self, *statements: Executable) -> list[Rows]:
        return self._wait_for(self._read(statements))

    def read_at(self, make: Make) -> list[Rows]:
        return self._wait_for(self._read_at(make))

    def _wait_for(self, work: Coroutine[Any, Any, list[Rows]]) -> list[Rows]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (DBAPIError, OSError) as error:
            raise _explained(error) from error

    async def _read(self, statements: Sequence[Executable]) -> list[Rows]:
        async with self._engine.connect() as connection:
            return [_rows(await connection.execute(statement)) for statement in statements]

    async def _read_at(self, make: Make) -> list[Rows]:
        async with self._engine.connect() as connection:
            now = Moment(self.dialect, (await connection.execute(_ROLLED_TO)).scalar() or 0)
            return [_rows(await connection.execute(statement)) for statement in make(now)]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.dispose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _rows(result: CursorResult[Any]) -> Rows:
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def _explained(error: Exception) -> LedgerUnavailable:
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    if "locked" in text or "busy" in text:
        return LedgerUnavailable("locked", "The ledger is busy; this page tries again by itself.")
    if "no such table" in text or "no such column" in text or "does not exist" in text:
        return LedgerUnavailable("schema", "The database holds no ledger, or an older one. Starting the gateway mends it.")
    if "permission denied" in text:
        return LedgerUnavailable("schema", "The database's role may not read all of it: see the grants in docs/dashboard.md.")
    if "not a database" in text or "malformed" in text:
        return LedgerUnavailable("schema", "The file is not a ledger database. Check database_url.")
    return LedgerUnavailable("away", "The database does not answer; calls go on and are kept in the journal.")
