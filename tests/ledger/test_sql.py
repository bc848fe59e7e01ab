"""The projector: nothing lost while the database is away, nothing stuck behind an entry it refuses."""
from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger import Entry, reports, sql
from gateway.ledger.journal import Journal, Place, Room
from gateway.ledger.schema import upgrade
from gateway.ledger.sql import SqlLedger, Store, async_url, is_away, waits
from gateway.ledger.tables import LEDGER, values_of
from tests.ledger.generate import entry


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[SqlLedger, Journal, Store]]:
    store, journal = Store(f"sqlite:///{folder}/t.db"), Journal(folder / "journal", "process")
    await upgrade(store.url)
    ledger = SqlLedger(store, journal)
    await ledger.start(journal.recover())
    try:
        yield ledger, journal, store
    finally:
        await ledger.close()
        journal.close()
        await store.close()


async def ids(store: Store) -> list[str]:
    async with store.begin() as connection:
        return list((await connection.execute(select(LEDGER.c.id).order_by(LEDGER.c.id))).scalars())


class Away(Store):
    """A store whose database does not answer until `back`."""

    back = False

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        if not self.back:
            raise OperationalError("insert", {}, Exception("connection refused"))
        async with super().begin() as connection:
            yield connection


async def test_a_database_that_is_away_costs_lag_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends go on, far beyond the queue; when it is back everything is projected, once."""
    monkeypatch.setattr(sql, "RETRY_S", 0.01)
    monkeypatch.setattr(sql, "QUEUE", 10)
    store, journal = Away(f"sqlite:///{tmp_path}/t.db"), Journal(tmp_path / "journal", "process")
    ledger = SqlLedger(store, journal)
    await ledger.start()
    for n in range(50):
        await ledger.append(entry(id=f"a-{n:02d}"))
    assert not await ledger.flush(0.2)
    assert (ledger.lag, ledger.failing) == (50, "OperationalError")
    store.back = True
    await upgrade(store.url)
    assert await ledger.flush()
    assert (ledger.lag, ledger.failing) == (0, None)
    assert await ids(store) == [f"a-{n:02d}" for n in range(50)]
    await ledger.close()
    journal.close()
    await store.close()
    assert list((tmp_path / "journal").iterdir()) == []


async def test_what_goes_past_the_queue_is_read_back_beside_the_loop_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, while more comes; each entry reaches the database one time, in the order in which it settled."""
    monkeypatch.setattr(sql, "RETRY_S", 0.0)
    monkeypatch.setattr(sql, "QUEUE", 10)
    monkeypatch.setattr(sql, "MOST_ROWS", 7)
    store, journal = Away(f"sqlite:///{tmp_path}/t.db"), Journal(tmp_path / "journal", "process", Room(segment_bytes=1 << 15))
    came, threads = list[str](), set[int]()
    insert, read = store.insert, journal.settled_between

    async def counted(entries: Sequence[Entry]) -> list[str]:
        taken = await insert(entries)
        came.extend(taken)
        return taken

    def beside(start: Place, end: Place, most: int) -> tuple[list[Entry], Place | None]:
        threads.add(threading.get_ident())
        return read(start, end, most)

    monkeypatch.setattr(store, "insert", counted)
    monkeypatch.setattr(journal, "settled_between", beside)
    await upgrade(store.url)
    ledger = SqlLedger(store, journal)
    await ledger.start()
    for n in range(400):
        store.back = n % 100 >= 60
        await ledger.append(entry(id=f"a-{n:03d}"))
        if n % 5 == 0:
            await asyncio.sleep(0)
    assert await ledger.flush(30.0)
    assert came == [f"a-{n:03d}" for n in range(400)]
    assert await ids(store) == came
    assert threads
    assert threading.get_ident() not in threads
    await ledger.close()
    journal.close()
    await store.close()
    assert list((tmp_path / "journal").iterdir()) == []


async def test_closing_without_a_database_leaves_the_journal(tmp_path: Path) -> None:
    """The next start finds what this one could not project."""
    store, journal = Away(f"sqlite:///{tmp_path}/t.db"), Journal(tmp_path / "journal", "process")
    ledger = SqlLedger(store, journal)
    await ledger.start()
    await ledger.append(entry())
    await ledger.close()
    journal.close()
    await store.close()
    async with running(tmp_path) as (again, _, store):
        assert await again.flush()
        assert await ids(store) == ["a-1"]


async def test_an_entry_the_database_refuses_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said so in the log, and the journal keeps it."""
    async with running(tmp_path) as (ledger, journal, store):
        monkeypatch.setattr(sql, "values_of", lambda e: (object(),) if e.id == "a-2" else values_of(e))
        for one in (entry(id="a-1"), entry(id="a-2"), entry(id="a-3")):
            await ledger.append(one)
        assert await ledger.flush()
        assert await ids(store) == ["a-1", "a-3"]
        assert "a-2" in caplog.text
        assert journal.unprojected == 1
    assert len(list((tmp_path / "journal").glob("*.journal"))) == 1


async def test_sqlite_is_opened_for_durable_single_writing(tmp_path: Path) -> None:
    """Write-ahead log, full sync, patience with readers."""
    async with running(tmp_path) as (_, _, store), store.begin() as connection:
        found = [(await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous", "busy_timeout")]
    assert found == ["wal", 2, 5_000]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has niceness by thread")
async def test_the_thread_that_writes_stands_behind_the_loop(tmp_path: Path) -> None:
    """On a core that both share, a call must not wait until a batch's time slice is over."""
    async with running(tmp_path) as (_, _, store), store.engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.create_function("niceness", 0, lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        found = (await connection.exec_driver_sql("SELECT niceness()")).scalar_one()
    assert found == min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + sql.STEPS_BACK, 19)


@pytest.mark.parametrize(("url", "driver"), [
    ("sqlite:////var/t.db", "sqlite+aiosqlite"),
    ("postgres://h/d", "postgresql+asyncpg"),
    ("postgresql+psycopg://u:p@h/d", "postgresql+asyncpg"),
])  # fmt: skip
def test_operators_write_plain_addresses(url: str, driver: str) -> None:
    assert async_url(url).drivername == driver


def test_another_database_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="mysql is not supported; use sqlite"):
        async_url("mysql://h/d")


@pytest.mark.parametrize(("query", "connect_s", "command_s"), [
    ("", 5, 20), ("?command_timeout=60", 5, 60), ("?connect_timeout=0.5&command_timeout=1&ssl=require", 0.5, 1),
])  # fmt: skip
def test_how_long_postgresql_is_waited_for_may_stand_in_its_address(query: str, connect_s: float, command_s: float) -> None:
    """It is the driver's argument then, and no part of what the address asks of the server."""
    url = f"postgresql://h/d{query}"
    assert waits(url, command_s=20) == {"timeout": connect_s, "command_timeout": command_s}
    assert set(async_url(url).query) <= {"ssl"}


@pytest.mark.parametrize("said", ["soon", "0", "-1", "nan", "inf", "1&command_timeout=2"])
def test_a_wait_that_is_no_time_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="database_url: command_timeout must be seconds"):
        waits(f"postgresql://h/d?command_timeout={said}")


async def test_a_statement_ends_after_the_time_in_the_address(postgres_url: str) -> None:
    store = Store(postgres_url.partition("?")[0] + "?command_timeout=0.5")
    with pytest.raises(TimeoutError):
        async with store.begin() as connection:
            await connection.execute(text("SELECT pg_sleep(3600)"))
    await store.close()


async def test_the_ledger_serves_readers_while_it_writes(tmp_path: Path) -> None:
    """A read-only connection sees what `flush` promised."""
    async with running(tmp_path) as (ledger, _, _):
        report = reports.connect(f"sqlite:///{tmp_path}/t.db")
        for n in range(3):
            await ledger.append(entry(id=f"a-{n}", call_id=f"c-{n}"))
            assert await ledger.flush()
            assert report.spend().total.calls == n + 1
        report.close()




class _Orig(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("x")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(("error", "away"), [
    (DBAPIError("q", {}, _Orig("57P03")), True),            # the database system is starting up
    (DBAPIError("q", {}, _Orig("53100")), True),            # disk full
    (DBAPIError("q", {}, _Orig("40001")), True),
    (DBAPIError("q", {}, _Orig("42P01")), True),            # its tables are gone: no row's fault
    (DBAPIError("q", {}, _Orig("22003")), False),
    (IntegrityError("q", {}, _Orig("23502")), False),
    (OperationalError("q", {}, Exception("database is locked")), True),
    (IntegrityError("q", {}, Exception("NOT NULL constraint failed")), False),
    (ConnectionRefusedError(), True), (TimeoutError(), True), (ValueError(), False),
])  # fmt: skip
def test_a_database_that_is_away_is_told_from_one_that_refuses(error: Exception, away: bool) -> None:
    """A server that is still starting must not cost an entry its place."""
    assert is_away(error) == away
