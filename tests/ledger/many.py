"""A ledger of millions: two hours are written and rolled up, the database makes the other days of them, roll-ups included.

Copies have other ids, runs and times. A database that copies its own rows is faster than any road into it.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from gateway.ledger.days import HOUR_US
from gateway.ledger.rollup_sql import RUN
from gateway.ledger.rollup_tables import LATENCY, ROLLUP, VALUES, seq
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store, async_url
from gateway.ledger.tables import COLUMNS, LEDGER
from gateway.metering import prices
from gateway.metering.named import named
from tests.ledger.generate import entries, write

COPIES, COPY_HOURS = 360, 2
"""Thirty days together; whole hours, so that their roll-ups can be copied too."""
OTHER = "(1000 + nth) || '~' || "
"""In front of names, so that those of a copy follow each other: the index of a key grows at its end."""
Track = Callable[[Iterable[int], str], Iterable[int]]
"""Shows how far a loop is."""


def fill(place: Path | str, size: int, track: Track = lambda loop, what: loop, *, lean: bool = False) -> str:
    """A ledger of about so many entries, up to the last whole hour; its URL. `lean`: only the last day has decisions, of which pages
    show the latest few hundred: half the bytes."""
    until_us = time.time_ns() // 1_000 // HOUR_US * HOUR_US - (COPIES - 1) * COPY_HOURS * HOUR_US
    url = write(place, entries(size // COPIES, until_us, days=COPY_HOURS / 24))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _multiply(url, track, lean)).result()
    return url


async def _multiply(url: str, track: Track, lean: bool) -> None:
    store = Store(url)
    roller = Roller(store, named(prices.load))
    while (await roller.step()).left:
        pass
    await store.close()
    engine = create_async_engine(async_url(url))        # the store's gives up after seconds
    later = f"nth * {COPY_HOURS}"
    own = {name: f"{OTHER}{name}" for name in ("id", "call_id", "run")} | {"at_us": f"at_us + {later} * {HOUR_US}"}
    if lean:
        own |= {"decision": f"CASE WHEN nth < {COPIES - 24 // COPY_HOURS} THEN '[]' ELSE decision END"}
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":         # nobody reads it yet, and it can be made again
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-200000"):
                await connection.exec_driver_sql(f"PRAGMA {pragma}")
        for index in LEDGER.indexes:
            await connection.run_sync(index.drop)
        await _copies(connection, LEDGER, {name: own.get(name, name) for name in COLUMNS}, track)
        for index in track(range(len(LEDGER.indexes)), "indexes"):
            await connection.run_sync(sorted(LEDGER.indexes, key=str)[index].create)
        await copy_rollups(connection, track)
    await engine.dispose()
    if url.startswith("postgresql"):        # as autovacuum would have done in the thirty days
        bare = await asyncpg.connect(url.partition("?")[0])
        await bare.execute("VACUUM ANALYZE")
        await bare.close()


async def copy_rollups(connection: AsyncConnection, track: Track) -> None:
    """Of the first hours, to all others; they then hold the whole ledger."""
    later, runs = f"nth * {COPY_HOURS}", ",".join(RUN)
    hours = {name: f"{name} + {later}" for name in ("hour", "first_hour", "last_hour")}
    own = {"v1": f"CASE WHEN substr(dim, 1, {len(runs)}) = '{runs}' THEN {OTHER}v1 ELSE v1 END", "value": f"{OTHER}value"}
    for table, where in ((ROLLUP, ""), (LATENCY, ""), (VALUES, " WHERE substr(dim, 1, 3) = 'run'")):
        moved = hours | (own if table is not LATENCY else {})
        await _copies(connection, table, {c.name: moved.get(c.name, c.name) for c in table.c}, track, where)
    span = f"last_hour = last_hour + {(COPIES - 1) * COPY_HOURS}, cost_nanos = cost_nanos * {COPIES}"
    await connection.exec_driver_sql(f"UPDATE rollup_values SET {span} WHERE substr(dim, 1, 3) <> 'run'")      # tags are the same
    newest = f"(SELECT max({seq(connection.dialect.name)}) FROM ledger)"
    await connection.exec_driver_sql(f"UPDATE rollup_state SET seq = {newest}, entries = (SELECT count(*) FROM ledger)")


async def _copies(connection: AsyncConnection, table: Table, picked: Mapping[str, str], track: Track, where: str = "") -> None:
    await connection.exec_driver_sql(f"CREATE TEMP TABLE seed AS SELECT * FROM {table.name}{where}")
    into = f"INSERT INTO {table.name} ({', '.join(picked)}) WITH s(nth) AS (SELECT {{}})"
    for nth in track(range(1, COPIES), table.name):     # one after the other, as time goes on: hours lie together
        await connection.exec_driver_sql(f"{into.format(nth)} SELECT {', '.join(picked.values())} FROM s CROSS JOIN seed")
    await connection.exec_driver_sql("DROP TABLE seed")
