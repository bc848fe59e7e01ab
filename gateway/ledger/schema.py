"""The database's schema: is it this program's, and if not, bring it there.

A new database gets its tables at once and is marked with the newest revision; one of the first release (tables, but no mark)
is taken over at revision 0001; what is older is migrated by Alembic, which is loaded only then. PostgreSQL: one process at a
time, under an advisory lock; a statement that waits for a table longer than `LOCK_TIMEOUT` gives up and is tried again, so that
calls under way never queue behind it. Migrations only add (`migrations/README.md`), so the release before goes on working.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.ledger import registers, rollup_tables, watch_tables
from gateway.ledger.sql import async_url
from gateway.ledger.tables import REVISION, Tables

__all__ = ["FIRST", "REVISION", "SchemaError", "downgrade", "revision", "upgrade"]

FIRST = "0001"
MIGRATIONS = Path(__file__).parent / "migrations"
LOCK_TIMEOUT = "5s"
_LOCK, _TRIES, _WAIT_S, _TURN_S = 0x746F6C6C, 5, 2.0, 0.1
assert {t.metadata for t in (registers.USERS, rollup_tables.ROLLUP, watch_tables.STATUS)} == {Tables.metadata}

log = logging.getLogger("tollway.ledger")


class SchemaError(Exception):
    """The database was made by a newer program than this one, or by one that has to be upgraded by hand first."""


async def revision(url: str) -> str | None:
    """What the database is at; None: nothing of ours is in it."""
    async with _engine(url) as engine, engine.connect() as connection:
        return await connection.run_sync(_revision)


async def upgrade(url: str, *, by_hand: bool = False) -> bool:
    """Brings the database to this program's schema; whether anything was to be done. `by_hand`: a database that is behind is
    left to `tollway db upgrade`. Raises `SchemaError`."""
    async with _engine(url) as engine:
        async with engine.connect() as connection:
            found = await connection.run_sync(_revision)
        _known(found)
        if found == REVISION:
            return False
        if found is not None and by_hand:
            behind = f"the database is at schema {found}, this Tollway needs {REVISION}"
            raise SchemaError(f"{behind}: run `tollway db upgrade` first")
        async with _alone(engine):
            for turn in range(1, _TRIES + 1):
                try:
                    await _to_newest(engine)
                    break
                except DBAPIError as error:
                    if turn == _TRIES or "lock timeout" not in str(error):
                        raise
                    log.warning("database: a table is in use, the migration waits and tries again")
                    await asyncio.sleep(_WAIT_S)
    log.info("database: schema %s (it was %s)", REVISION, found or "empty")
    return True


async def downgrade(url: str, to: str) -> None:
    """Back to an older revision; what only the newer one knew is lost. Raises `SchemaError` for a revision there is not."""
    async with _engine(url) as engine, _alone(engine), engine.connect() as connection:
        found = await connection.run_sync(_revision)
        _known(found)
        if not FIRST <= to <= (found or FIRST) or not list((MIGRATIONS / "versions").glob(f"{to}_*.py")):
            raise SchemaError(f"there is no older schema {to!r}; the database is at {found}")
        if engine.dialect.name != "sqlite":
            await connection.rollback()
        await connection.run_sync(_migrate, "downgrade", to)
        await connection.commit()


async def _to_newest(engine: AsyncEngine) -> None:
    """Looks again: while we waited for our turn, another process may have done it."""
    async with engine.connect() as connection:
        async with connection.begin():
            found = await connection.run_sync(_revision)
            if found is None:
                await connection.run_sync(Tables.metadata.create_all)
                await connection.run_sync(_mark)
            elif found != REVISION and engine.dialect.name == "sqlite":
                await connection.run_sync(_migrate, "upgrade", "head")
        if found not in (None, REVISION) and engine.dialect.name != "sqlite":
            await connection.run_sync(_migrate, "upgrade", "head")
            await connection.commit()


def _migrate(connection: Connection, name: str, to: str) -> None:
    """SQLite: within the caller's transaction. PostgreSQL: one transaction a migration, indexes built beside the traffic."""
    from alembic import command  # half of a second start's time: only where there is something to migrate
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    first_release = not inspect(connection).has_table("alembic_version")
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
        connection.commit()
    if first_release:
        command.stamp(config, FIRST)
        if connection.dialect.name == "postgresql":
            connection.commit()
    run: Callable[[Config, str], Any] = getattr(command, name)
    run(config, to)


def _revision(connection: Connection) -> str | None:
    there = inspect(connection).get_table_names()
    if "alembic_version" in there:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if found is not None:
            return str(found)
    return FIRST if "ledger" in there else None


def _mark(connection: Connection) -> None:
    """As Alembic would."""
    column = "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
    connection.execute(text(f"CREATE TABLE alembic_version ({column})"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": REVISION})


def _known(found: str | None) -> None:
    if found is not None and not list((MIGRATIONS / "versions").glob(f"{found}_*.py")):
        raise SchemaError(f"the database has schema {found}, this Tollway knows {REVISION}: use a newer Tollway")


@contextlib.asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(async_url(url), poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _transactional)
        event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        yield engine
    finally:
        await engine.dispose()


def _transactional(connection: Any, _: Any) -> None:
    """Python's driver would leave CREATE and ALTER outside of transactions; two starting processes then meet half-way."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=20000")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


@contextlib.asynccontextmanager
async def _alone(engine: AsyncEngine) -> AsyncIterator[None]:
    """One process at a time; on SQLite the transaction itself sees to that."""
    if engine.dialect.name == "sqlite":
        yield
        return
    async with engine.connect() as connection:
        # No transaction stays open and no statement waits meanwhile: an index built beside the traffic waits for all of them.
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        while not (await connection.execute(text(f"SELECT pg_try_advisory_lock({_LOCK})"))).scalar_one():  # noqa: ASYNC110
            await asyncio.sleep(_TURN_S)
        try:
            yield
        finally:
            await connection.execute(text(f"SELECT pg_advisory_unlock({_LOCK})"))
