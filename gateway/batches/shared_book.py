"""The queue's book in PostgreSQL, so that all replicas share it: a batch is found at any of them, and one of them works it off.

The same statements as on disk, in a schema of its own (`tollway_queue`). Methods block as those of `Book` do, so the driver
has an event loop in a thread of its own.
"""
from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from sqlalchemy import CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from gateway.batches.book import TABLES, Book
from gateway.core.errors import GatewayError
from gateway.ledger.sql import CONNECT_S, async_url, waits

_SCHEMA = "tollway_queue"
_SIZE = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = "
_STATEMENT_S = 60
_LAST_TRIES, _LAST_TRY_S = 100, 0.02
T = TypeVar("T")


class QueueAway(GatewayError):
    """The database that the queue is in does not answer."""

    status, code, retry = 503, "queue_unavailable", True


class PostgresBook(Book):
    """`url` as `database_url`; its tables are made when they are first needed."""

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(
            async_url(url), pool_size=4, pool_pre_ping=True,
            connect_args={**waits(url, CONNECT_S, _STATEMENT_S), "server_settings": {"search_path": _SCHEMA}},
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="queue-book", daemon=True)
        self._thread.start()
        self._made = self._closed = False
        self._users: set[int] = set()

    def close(self) -> None:
        """Threads that still wait for a statement are told that it is over: they would wait for ever for a stopped loop."""
        self._closed = True
        self._wait(self._give_up())
        for _ in range(_LAST_TRIES):
            if not self._users:
                break
            time.sleep(_LAST_TRY_S)
        self._wait(self._engine.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def size_bytes(self) -> int:
        return int(self._rows(f"{_SIZE} '{_SCHEMA}'::regnamespace")[0][0])

    @contextmanager
    def _change(self) -> Iterator[Any]:
        me = threading.get_ident()
        self._users.add(me)
        try:
            if self._closed:
                raise OSError("the queue is closed")
            self._make()
            connection = self._wait(self._connected())
            try:
                yield _Statements(self, connection)
                self._wait(connection.commit())
            finally:
                self._wait(connection.close())
        except (DBAPIError, OSError, TimeoutError, CancelledError) as error:
            raise QueueAway("the queue's database does not answer; try again soon") from error
        finally:
            self._users.discard(me)

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._change() as db:
            return list(db.execute(sql, values).fetchall())

    def _make(self) -> None:
        if not self._made:
            self._wait(self._make_tables())
            self._made = True

    async def _give_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self) -> AsyncConnection:
        return await self._engine.connect()

    async def _make_tables(self) -> None:
        async with self._engine.begin() as connection:
            await connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7241532)")  # replicas may start at once
            found = await connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = $1", (_SCHEMA,))
            if found.first() is None:
                await connection.exec_driver_sql(f"CREATE SCHEMA {_SCHEMA}")
            for table in TABLES.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT").split(";"):
                if table.strip():
                    await connection.exec_driver_sql(table)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Statements:
    """What `Book` asks of a connection of sqlite3."""

    def __init__(self, book: PostgresBook, connection: AsyncConnection) -> None:
        self._book, self._connection = book, connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> CursorResult[Any]:
        return self._book._wait(self._connection.exec_driver_sql(_numbered(sql), tuple(values) or None))

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._book._wait(self._connection.exec_driver_sql(_numbered(sql), [tuple(row) for row in rows]))


@lru_cache(256)
def _numbered(sql: str) -> str:
    """`?` as $1, $2 and so on."""
    number = count(1)
    return "".join(f"${next(number)}" if each == "?" else each for each in sql)
