"""Keeps the roll-ups: adds what came since the last time, a few thousand entries in one transaction, in the database itself.

Everything in a roll-up is a sum over entries, corrections included, so late entries need no care: they are added to their
hour when they come. What a correction changes about an attempt that had no price is told by the order of insertion alone.
Two processes may roll at once: the state's row is locked, and the second finds nothing left to do.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import heap
from gateway.ledger.rollup_sql import Statements, statements
from gateway.ledger.rollup_tables import KEPT, RATES, STATE, seq
from gateway.ledger.sql import Store
from gateway.ledger.tables import LEDGER

CHUNK = 2_500
"""Entries that are added in one transaction: as long as it lasts, nobody else writes to SQLite."""
RatesOf = Callable[[Sequence[str]], Mapping[str, int] | None]
"""Ids of price rows -> pico-dollars per token of each class (columns of `price_rates`); None: not known."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """What one step did. `left`: entries that wait still."""

    entries: int
    left: int


class Roller:
    """`step` until nothing is left; then again from time to time."""

    def __init__(self, store: Store, rates_of: RatesOf) -> None:
        self.store, self._rates_of = store, rates_of
        self._prepared = False

    async def step(self, chunk: int = CHUNK) -> Rolled:
        """Adds up to `chunk` entries. Raises SQLAlchemy's errors; then nothing was added."""
        sql = await asyncio.to_thread(statements, self.store.engine.dialect.name)      # the first time it takes 0.2 s
        async with self.store.begin() as connection:
            for lock in sql.lock:
                await connection.exec_driver_sql(lock)
            at = (await connection.exec_driver_sql(sql.where)).one()
            done, newest = at.seq, at.newest
            until, count = min(newest, done), 0
            if newest > done:       # places have gaps: batches that were sent twice, entries that are gone
                batch = (await connection.exec_driver_sql(sql.batch, (done, chunk))).one()
                count, until = batch.entries, batch.until
                between = (done, until)
                await self._learn_rates(connection, sql, between)
                await connection.exec_driver_sql(sql.sums, between)
                await connection.exec_driver_sql(sql.latency, between)
                await connection.exec_driver_sql(sql.values, between)
            await connection.exec_driver_sql(sql.done, (until, count, time.time_ns() // 1_000))
        if count and not self._prepared:    # SQLite takes 30 MiB to read statements of 100 kB
            self._prepared = True
            await asyncio.to_thread(heap.give_back)
        return Rolled(count, newest - until)

    async def _learn_rates(self, connection: AsyncConnection, sql: Statements, between: tuple[int, int]) -> None:
        """Keeps the rates of price rows that no entry named before."""
        for found in (await connection.exec_driver_sql(sql.fresh, between)).scalars().all():
            if rates := await asyncio.to_thread(self._rates_of, orjson.loads(found)):      # the first one loads the price book
                row = {"rows": found, **rates}
                await connection.exec_driver_sql(sql.rate, tuple(row[column.name] for column in RATES.c))

    async def reset(self) -> None:
        """Forgets all sums; reports read the ledger itself until they are made again."""
        async with self.store.begin() as connection:
            for table in KEPT:
                await connection.execute(delete(table))

    async def damaged(self) -> bool:
        """Whether the ledger is not the one that was rolled up: restored from a copy, or entries taken out of it."""
        async with self.store.begin() as connection:
            state = (await connection.execute(select(STATE.c.seq, STATE.c.entries))).first()
            if state is None:
                return False
            there = select(func.count()).select_from(LEDGER).where(seq(connection.dialect.name) <= state.seq)
            return bool((await connection.execute(there)).scalar_one() != state.entries)
