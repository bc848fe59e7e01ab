"""What processes remember for each other: who keeps a stored answer, whose usage is still to come, and idempotency keys."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Table, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core import clock
from gateway.ledger.registers import IDEMPOTENCY, KEPT
from gateway.ledger.sql import Store

_NOTED = ("name", "team", "backend", "tokens", "at_us")
KEEP_US = 32 * 86_400 * 1_000_000
"""Providers keep answers and batches for a month."""


class Kept(msgspec.Struct, frozen=True):
    """A stored thing: its id, whose it is, which backend has it, since when, and the booking that waits for its usage."""

    name: str
    team: str
    backend: str
    at_us: int
    pending: dict[str, Any] | None = None
    tokens: int | None = None
    """Of an answer, with all that it goes on from."""


class Use(msgspec.Struct, frozen=True):
    """One use of an idempotency key. `status`: of the finished call, None while it runs."""

    fingerprint: str
    call_id: str
    status: int | None = None
    headers: list[tuple[str, str]] | None = None
    answer: bytes | None = None


class MemoryTable:
    """Reads and writes through the process's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sqlite = store.url.startswith("sqlite")

    def _into(self, table: Table) -> Any:
        return sqlite.insert(table) if self._sqlite else postgresql.insert(table)

    async def note(self, things: Sequence[tuple[str, str, str, int | None]]) -> None:
        """Id, team, backend and tokens of each. What is known already stays as it is."""
        now_us = clock.now_us()
        rows = [dict(zip(_NOTED, (*thing, now_us), strict=True)) for thing in things]
        async with self._store.begin() as connection:
            await connection.execute(self._into(KEPT).on_conflict_do_nothing(), rows)

    async def keep(self, thing: Kept) -> None:
        """A stored thing with its booking that waits."""
        into = self._into(KEPT).values(msgspec.structs.asdict(thing))
        async with self._store.begin() as connection:
            await connection.execute(into.on_conflict_do_update(index_elements=["name"], set_={"pending": thing.pending}))

    async def find(self, name: str) -> Kept | None:
        async with self._store.begin() as connection:
            row = (await connection.execute(select(KEPT).where(KEPT.c.name == name))).mappings().first()
        return None if row is None else Kept(**row)

    async def booked(self, name: str) -> None:
        """Its usage has come."""
        async with self._store.begin() as connection:
            await connection.execute(update(KEPT).where(KEPT.c.name == name).values(pending=None))

    async def claim(self, team: str, key: str, use: Use, now_us: int, expires_us: int) -> Use | None:
        """None: it is this call's now. Else what the key was used for; an expired use is as none."""
        mine = (IDEMPOTENCY.c.team == team, IDEMPOTENCY.c.key == key)
        facts = {"fingerprint": use.fingerprint, "call_id": use.call_id, "at_us": now_us, "expires_us": expires_us}
        row = {"team": team, "key": key, **facts}
        async with self._store.begin() as connection:
            await connection.execute(delete(IDEMPOTENCY).where(*mine, IDEMPOTENCY.c.expires_us <= now_us))
            await connection.execute(self._into(IDEMPOTENCY).on_conflict_do_nothing(), [row])
            found = (await connection.execute(select(IDEMPOTENCY).where(*mine))).mappings().one()
        if found["call_id"] == use.call_id:
            return None
        return Use(found["fingerprint"], found["call_id"], found["status"], found["headers"], found["answer"])

    async def finish(self, team: str, key: str, use: Use, expires_us: int) -> None:
        """The call is over; what is kept of its answer is replayed."""
        mine = (IDEMPOTENCY.c.team == team, IDEMPOTENCY.c.key == key, IDEMPOTENCY.c.call_id == use.call_id)
        values = {"status": use.status, "headers": use.headers, "answer": use.answer, "expires_us": expires_us}
        async with self._store.begin() as connection:
            await connection.execute(update(IDEMPOTENCY).where(*mine).values(**values))

    async def drop(self, team: str, key: str, call_id: str) -> None:
        """Nothing came of the call: the key may be used again."""
        mine = (IDEMPOTENCY.c.team == team, IDEMPOTENCY.c.key == key, IDEMPOTENCY.c.call_id == call_id)
        async with self._store.begin() as connection:
            await connection.execute(delete(IDEMPOTENCY).where(*mine))

    async def prune(self, now_us: int) -> None:
        """Forgets what is over; bookings that still wait are not forgotten."""
        async with self._store.begin() as connection:
            await connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.expires_us <= now_us))
            old = (KEPT.c.at_us < now_us - KEEP_US, KEPT.c.pending.is_(None))
            await connection.execute(delete(KEPT).where(*old))
