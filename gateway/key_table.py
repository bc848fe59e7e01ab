"""Keys on disk: the rows behind the `KeyRing`, and an audit row for each change in the same transaction."""
from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.access.keys import KeyRecord
from gateway.ledger.sql import Store
from gateway.ledger.tables import AUDIT, KEYS

_FIELDS = ("id", "team", "digest", "project", "name", "role", "created_us", "expires_us", "revoked_us")
_COLUMNS = [KEYS.c[name] for name in _FIELDS]


class KeyTable:
    """Writes go through the process's one writing connection."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> list[KeyRecord]:
        async with self._store.begin() as connection:
            rows = (await connection.execute(select(*_COLUMNS))).mappings().all()
        return [KeyRecord(**row) for row in rows]

    async def insert(self, record: KeyRecord, actor: str) -> None:
        async with self._store.begin() as connection:
            await _audit(connection, actor, "key.create", record)
            await connection.execute(insert(KEYS).values({name: getattr(record, name) for name in _FIELDS}))

    async def revoke(self, key_id: str, now_us: int, actor: str) -> KeyRecord | None:
        """The record as it is now; None if there is no such key."""
        async with self._store.begin() as connection:
            await connection.execute(
                update(KEYS).where(KEYS.c.id == key_id, KEYS.c.revoked_us.is_(None)).values(revoked_us=now_us)
            )
            row = (await connection.execute(select(*_COLUMNS).where(KEYS.c.id == key_id))).mappings().first()
            if row is None:
                return None
            record = KeyRecord(**row)
            await _audit(connection, actor, "key.revoke", record)
        return record

    async def audit(self, actor: str, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """One row of the audit trail for what is not about a key."""
        async with self._store.begin() as connection:
            await _write(connection, actor, action, target, detail)


async def _audit(connection: AsyncConnection, actor: str, action: str, record: KeyRecord) -> None:
    await _write(connection, actor, action, record.id, {"team": record.team, "role": record.role, "name": record.name})


async def _write(connection: AsyncConnection, actor: str, action: str, target: str, detail: Mapping[str, Any]) -> None:
    await connection.execute(
        insert(AUDIT).values(
            id=secrets.token_hex(12),
            at_us=time.time_ns() // 1_000,
            actor=actor,
            action=action,
            target=target,
            detail=dict(detail),
        )
    )
