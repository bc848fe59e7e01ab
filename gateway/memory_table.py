"""What processes remember for each other: who keeps a stored answer, whose usage is still to come, and idempotency keys."""
from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.ledger.registers import IDEMPOTENCY, KEPT
from gateway.ledger.sql import Store

KEEP_US = 32 * 86_400 * 1_000_000
"""Providers keep answers and batches for a month."""


class Kept(msgspec.Struct, frozen=True):
    """A stored thing: its id, whose it is, which backend has it, since when, and the booking that waits for its usage."""

    name: str
    team: str
    backend: str
    at_us: int
    pending: dict[str, Any] | None = None


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

    async def keep(self, things: list[Kept]) -> None:
        """What is known already stays as it is."""
        into = (sqlite if self._store.engine.dialect.name == "sqlite" else postgresql).insert(KEPT)
        async with self._store.begin() as connection:
            await connection.execute(into.on_conflict_do_nothing(), [msgspec.structs.asdict(thing) for thing in things])

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
        into = (sqlite if self._store.engine.dialect.name == "sqlite" else postgresql).insert(IDEMPOTENCY)
        row = {"team": team, "key": key, "fingerprint": use.fingerprint, "call_id": use.call_id, "at_us": now_us, "expires_us": expires_us}
        async with self._store.begin() as connection:
            await connection.execute(delete(IDEMPOTENCY).where(*mine, IDEMPOTENCY.c.expires_us <= now_us))
            await connection.execute(into.on_conflict_do_nothing(), [row])
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
