"""Entries in a SQL database, SQLite or PostgreSQL: appended to the journal, projected from it in batches.

`append` returns when the journal has the entry and never waits for SQL. One task with the store's one writing connection puts
entries into the table, 500 to 2,000 at once or what came in a quarter of a second (`flush` does not wait for that); inserting
an id twice does nothing. A database that is away costs nothing but lag: the task tries again, entries beyond `QUEUE` are left
to the journal and read back from it.
"""
from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import orjson
from sqlalchemy import event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.ledger import Entry
from gateway.ledger.journal import Journal, JournalError, Place
from gateway.ledger.records import cleaned
from gateway.ledger.tables import COLUMNS, dumps, values_of

BATCH_ROWS, MOST_ROWS = 500, 2_000
"""A batch worth its transaction; and the most in one, so that a busy loop, where each step of a transaction waits for its turn,
does not fall behind."""
CHUNK_ROWS = 100
BATCH_S = 0.25
_ROWS_AT_ONCE, _REST_S = (32, 8, 1), 0.0005
"""Rows of one statement on SQLite: after each its thread must win the interpreter back from a loop that is busy. Between two
long ones it rests: a kernel lets a thread run on for some milliseconds, though the loop has become ready on the same core."""
_STEPS_AT_ONCE, _PAUSE_S = 20_000, 0.0001
"""Of SQLite's own machine, within a statement, between two pauses: about half a millisecond, and how long they are."""
QUEUE = 20_000
RETRY_S = 1.0
CONNECT_S, COMMAND_S = 5.0, 5.0
"""Longest that a connection to PostgreSQL, and a statement there, may take: a server that has stopped must not stop us."""
_CONNECT, _COMMAND, _LONGEST_S = "connect_timeout", "command_timeout", 3_600

STEPS_BACK = 5
"""Steps of niceness by which the thread that writes to SQLite stands behind the loop."""
_ROWS_FAULT = ("22", "23", "54")
"""SQLSTATE classes that say something about the row: wrong data, a constraint, a limit of the program."""

_CLOCK = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")

log = logging.getLogger("tollway.ledger")


def is_away(error: Exception) -> bool:
    """Whether an error is one of a database that cannot be reached, is starting, busy or full, as against one that refuses a
    row."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, OSError | PoolTimeout)
    if isinstance(getattr(error.orig, "__cause__", None), ValueError):      # the driver could not send the value
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return not state.startswith(_ROWS_FAULT)
    return not isinstance(error, DataError | IntegrityError | ProgrammingError)


def async_url(url: str) -> URL:
    """`sqlite:///F` and `postgresql://...` as operators write them, with the driver that we use."""
    parsed = make_url(url)
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
    backend = parsed.drivername.partition("+")[0]
    if backend not in drivers:
        raise ValueError(f"database_url: {backend} is not supported; use sqlite:///FILE or postgresql://HOST/NAME")
    return parsed.set(drivername=drivers[backend]).difference_update_query((_CONNECT, _COMMAND))


def waits(url: str, connect_s: float = CONNECT_S, command_s: float = COMMAND_S) -> dict[str, float]:
    """How long PostgreSQL's driver waits, as its arguments; `connect_timeout` and `command_timeout` in the address, in seconds,
    go before what is given here. Raises `ValueError`."""
    return {"timeout": _seconds(url, _CONNECT, connect_s), "command_timeout": _seconds(url, _COMMAND, command_s)}


def _seconds(url: str, name: str, usual_s: float) -> float:
    with contextlib.suppress(TypeError, ValueError):        # a name that stands twice has two values
        if 0 < (seconds := float(make_url(url).query.get(name, usual_s))) <= _LONGEST_S:    # type: ignore[arg-type]
            return seconds
    raise ValueError(f"database_url: {name} must be seconds, above 0 and at most {_LONGEST_S}")


class Store:
    """The connections of this process that write, to the ledger and to keys alike; on SQLite it is one."""

    def __init__(self, url: str) -> None:
        self.url = url
        sqlite, patience = async_url(url).get_backend_name() == "sqlite", waits(url)
        self.engine: AsyncEngine = create_async_engine(
            async_url(url),
            pool_size=1 if sqlite else 3,       # the projector's, and two for keys and people
            max_overflow=0,
            pool_timeout=patience["timeout"],
            pool_pre_ping=True,
            connect_args={} if sqlite else {**patience, "server_settings": {"jit": "off"}},
            json_serializer=dumps,
            json_deserializer=orjson.loads,
        )
        self.warning: str | None = None
        """What the database's own settings put at risk; None if nothing, or not known yet."""
        event.listen(self.engine.sync_engine, "connect", _sqlite_settings if sqlite else self._look)

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """One transaction; others wait until it is over."""
        async with self.engine.begin() as connection:
            yield connection

    def _look(self, connection: Any, _: Any) -> None:
        """Entries leave the journal once PostgreSQL has them: it must not forget them."""
        cursor = connection.cursor()
        cursor.execute("SELECT name FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') AND setting = 'off'")
        off = sorted(row[0] for row in cursor.fetchall())
        cursor.close()
        self.warning = f"{' and '.join(off)} off: a crash of its machine may lose entries" if off else None

    async def ahead_us(self) -> tuple[int, int]:
        """The database's clock less this machine's, and how far that may be wrong; a file has no clock of its own."""
        if self.engine.dialect.name == "sqlite":
            return 0, 0
        async with self.engine.connect() as connection:
            asked_us = time.time_ns() // 1_000
            theirs_us = (await connection.execute(_CLOCK)).scalar_one()
            half_us = (time.time_ns() // 1_000 - asked_us) // 2
        return theirs_us - asked_us - half_us, half_us

    async def insert(self, entries: Sequence[Entry]) -> list[str]:
        """See `Rows`."""
        try:
            async with self.begin() as connection:
                await insert_entries(connection, entries)
        except (SQLAlchemyError, OSError, ValueError, TypeError, OverflowError) as error:
            if is_away(error):
                raise
            if len(entries) > 1:
                half = len(entries) // 2
                return [*await self.insert(entries[:half]), *await self.insert(entries[half:])]
            if (mended := cleaned(entries[0])) != entries[0]:
                return await self.insert([mended])
            log.error("ledger: entry %s does not fit into the database and stays in the journal: %s", entries[0].id, error)
            return []
        return [entry.id for entry in entries]

    async def close(self) -> None:
        await self.engine.dispose()


def _sqlite_settings(connection: Any, _: Any) -> None:
    """`temp_store`: an INSERT of many rows keeps the pages as they were until it has succeeded, and wrote them to a file."""
    connection.create_function("step_back", 0, _step_back)
    connection.run_async(lambda driver: driver.set_progress_handler(_pause, _STEPS_AT_ONCE))
    cursor = connection.cursor()
    cursor.execute("SELECT step_back()")                    # runs in the thread that has the connection
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _pause() -> None:
    """In the middle of a long statement, such as those of the roll-ups."""
    time.sleep(_PAUSE_S)


def _step_back() -> None:
    """Linux: this thread gets less of a core that it shares with the loop, which then need not wait a time slice. What it
    still gets of a busy core, a quarter, is more than entries and roll-ups take."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, os.getpid()) + STEPS_BACK)


class Rows(Protocol):
    """Where the projector puts entries: a `Store`, or the process that has it."""

    async def insert(self, entries: Sequence[Entry]) -> list[str]:
        """Puts entries in; returns the ids that are there now: one that the database refuses is left out. Raises an error
        that `is_away`."""
        ...


Explained = Callable[[Sequence[Entry]], Awaitable[Sequence[Entry]]]


class SqlLedger:
    """The ledger on rows, behind a journal. `start` before the first append, `close` after the last."""

    def __init__(self, rows: Rows, journal: Journal) -> None:
        self._rows, self._journal = rows, journal
        self._queue: deque[Entry] = deque()
        self._wake, self._idle, self._hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._missed: Place | None = None
        """From there on entries went past the queue, which was full."""
        self._stretch: tuple[Place, Place] | None = None
        """What is being read back of the journal, and what of it has been read."""
        self._again: deque[Entry] = deque()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.explained: Explained | None = None
        """Tells entries what was found out about them since they settled; what it adds is not in the journal."""
        self.failing: str | None = None
        """Why the database does not take entries at the moment; None if it does."""

    async def start(self, recovered: Sequence[Entry] = ()) -> None:
        """Start projecting, `journal.recover()`'s entries first."""
        self._queue.extend(recovered)
        self._idle.clear()
        self._wake.set()
        self._task = asyncio.create_task(self._project(), name="ledger-projector")

    def adopt(self, recovered: Sequence[Entry]) -> None:
        """Projects what `journal.recover()` found later on."""
        if recovered:
            self._queue.extend(recovered)
            self._idle.clear()
            self._wake.set()

    async def append(self, entry: Entry) -> None:
        """Raises `JournalError` where the entry is not safe; then too it goes to the database, since it will be billed."""
        if self._missed is None and len(self._queue) >= QUEUE:
            self._missed = self._journal.place
        missed = self._missed is not None
        try:
            await self._journal.settle(entry)
        except JournalError:
            missed = False
            raise
        finally:
            if not missed:
                self._queue.append(entry)
            if not self._wake.is_set():
                self._idle.clear()
                self._wake.set()

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all appended so far can be read; False if the database did not take them in time."""
        self._hurry.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self._idle.is_set()

    @property
    def lag(self) -> int:
        """Entries that are in the journal and not yet in the database."""
        return max(self._journal.unprojected, len(self._queue))

    async def close(self) -> None:
        """Project what is left, if the database takes it; what it does not take waits in the journal."""
        self._closing = True
        self._wake.set()
        self._hurry.set()
        if self._task is not None:
            await self._task

    async def _project(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._gather()
            while waiting := await self._next():
                if await self._insert(waiting):
                    await self._gather()
                    continue
                if self._closing:
                    return
                await asyncio.sleep(RETRY_S)
            self._idle.set()
            self._hurry.clear()
            if self._closing:
                return

    async def _gather(self) -> None:
        """Lets a worthwhile batch come together: a transaction costs as much as many rows."""
        if 0 < len(self._queue) < BATCH_ROWS and not (self._again or self._stretch or self._hurry.is_set()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), BATCH_S)

    async def _next(self) -> deque[Entry]:
        """Those whose turn it is, oldest first: what was read back of the journal, else the queue. Once that is empty what went
        past it is read back, in pieces and beside the loop; what comes meanwhile has room in the queue."""
        while not self._again:
            if self._stretch is None:
                if self._queue or self._missed is None:
                    return self._queue
                self._stretch, self._missed = (self._missed, self._journal.place), None
            start, end = self._stretch
            entries, behind = await asyncio.to_thread(self._journal.settled_between, start, end, MOST_ROWS)
            self._again.extend(entries)
            self._stretch = None if behind is None else (behind, end)
        return self._again

    async def _insert(self, waiting: deque[Entry]) -> bool:
        """False: the database is away. An entry that it refuses is set aside; the journal keeps it."""
        batch: Sequence[Entry] = list(islice(waiting, MOST_ROWS))
        if self.explained is not None:
            told = await self.explained(batch)
            if told is not batch:                   # should the database be away, they are here to try again
                batch = told
                for n, entry in enumerate(batch):
                    waiting[n] = entry
        try:
            taken = await self._rows.insert(batch)
        except (SQLAlchemyError, OSError) as error:
            if not is_away(error):
                raise
            self.failing = type(error).__name__
            log.warning("ledger: the database does not take entries (%s), %d wait in the journal", error, self.lag)
            return False
        self.failing = None
        for _ in batch:
            waiting.popleft()
        self._journal.projected(taken)
        return True


async def insert_entries(connection: AsyncConnection, entries: Sequence[Entry]) -> None:
    """Plain batched inserts; ids that are already there stay as they are. SQLite's thread makes the rows itself."""
    text = _insert_text(connection.dialect.name)
    if connection.dialect.name == "sqlite":
        driver, start = (await connection.get_raw_connection()).driver_connection, 0
        for rows in _ROWS_AT_ONCE:
            end = len(entries) - (len(entries) - start) % rows
            if end > start:
                try:
                    await driver.executemany(_insert_text("sqlite", rows), _flat(entries, start, end, rows))  # type: ignore[union-attr]
                except sqlite3.Error as error:
                    raise DBAPIError.instance(text, None, error, sqlite3.Error, dialect=connection.dialect) from error
                start = end
        return
    for start in range(0, len(entries), CHUNK_ROWS):    # between chunks the loop serves calls
        await connection.exec_driver_sql(text, [values_of(entry) for entry in entries[start : start + CHUNK_ROWS]])


def _flat(entries: Sequence[Entry], start: int, end: int, rows: int) -> Iterator[list[Any]]:
    """The values of entries start:end, so many entries together."""
    for first in range(start, end, rows):
        if first > start and rows > 1:
            time.sleep(_REST_S)
        values: list[Any] = []
        for entry in entries[first : first + rows]:
            values += values_of(entry)
        yield values


@functools.cache
def _insert_text(dialect: str, rows: int = 1) -> str:
    """Compiled once for the driver: SQLAlchemy's own handling of 49 parameters costs three times what the database does."""
    marks = ", ".join("?" if dialect == "sqlite" else f"${n}" for n in range(1, len(COLUMNS) + 1))
    return f"INSERT INTO ledger ({', '.join(COLUMNS)}) VALUES {', '.join([f'({marks})'] * rows)} ON CONFLICT (id) DO NOTHING"
