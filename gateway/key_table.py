"""Keys on disk: the rows behind the `KeyRing`, and an audit row before each change, in the same transaction."""
from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import audit
from gateway.access.keys import KeyRecord
from gateway.core import clock
from gateway.ledger.registers import PROJECTS
from gateway.ledger.sql import Store
from gateway.ledger.tables import AUDIT, KEYS

_FIELDS = (
    "id", "team", "digest", "project", "name", "role", "created_us", "expires_us", "revoked_us", "user_id", "budget", "limits",
    "changed_us",
)  # fmt: skip
_COLUMNS = [KEYS.c[name] for name in _FIELDS]
_SHOWN = ("team", "project", "name", "role", "expires_us", "revoked_us", "user_id", "budget", "limits")
_OVERLAP_US = 60_000_000
"""Changes are seen in another order than they are dated, and clocks agree to a tenth of a second: so much is read anew."""


class KeyTable:
    """Writes go through the process's one writing connection."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def warning(self) -> str | None:
        """What the database's own settings put at risk."""
        return self._store.warning

    async def ahead_us(self) -> int:
        """The database's clock less this machine's, by which this process's is set right; as found last while it is away."""
        with contextlib.suppress(SQLAlchemyError, OSError):
            clock.SHARED.correct(*await self._store.ahead_us())
        return clock.SHARED.ahead_us

    async def load(self, newer_than_us: int | None = None) -> list[KeyRecord]:
        """All keys, or those changed since about then."""
        wanted = select(*_COLUMNS)
        if newer_than_us is not None:
            wanted = wanted.where(KEYS.c.changed_us > newer_than_us - _OVERLAP_US)
        async with self._store.begin() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return [KeyRecord(**row) for row in rows]

    async def insert(self, record: KeyRecord, actor: str) -> KeyRecord:
        """The record as it was written. A project that was not there is made."""
        record = replace(record, changed_us=clock.now_us())
        async with self._store.begin() as connection:
            await audit.write(connection, actor, "key.create", record.id, after=_shown(record))
            if record.project is not None:
                await _project(connection, record.team, record.project, actor)
            await connection.execute(insert(KEYS).values({name: getattr(record, name) for name in _FIELDS}))
        return record

    async def change(self, key_id: str, actor: str, fields: dict[str, Any]) -> KeyRecord | None:
        """The record as it is now; None if there is no such key."""
        return await self._change(key_id, actor, "key.change", fields)

    async def revoke(self, key_id: str, now_us: int, actor: str) -> KeyRecord | None:
        """As `change`; the first revocation counts."""
        return await self._change(key_id, actor, "key.revoke", {"revoked_us": now_us})

    async def _change(self, key_id: str, actor: str, action: str, fields: Mapping[str, Any]) -> KeyRecord | None:
        async with self._store.begin() as connection:
            row = (await connection.execute(select(*_COLUMNS).where(KEYS.c.id == key_id))).mappings().first()
            if row is None:
                return None
            old = KeyRecord(**row)
            if isinstance(narrowed := fields.get("limits"), Mapping):  # of them too, what is not named stays
                fields = {**fields, "limits": {**(old.limits or {}), **narrowed}}
            if action == "key.revoke" and old.revoked_us is not None:
                return old
            new = replace(old, **fields, changed_us=clock.now_us())
            await audit.write(connection, actor, action, key_id, before=_shown(old), after=_shown(new))
            await connection.execute(update(KEYS).where(KEYS.c.id == key_id).values(changed_us=new.changed_us, **fields))
        return new

    async def audit(self, actor: str, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """One row of the audit trail for what is not about a key."""
        async with self._store.begin() as connection:
            await audit.note(connection, actor, action, target, detail)

    async def trail(self, limit: int, before_us: int | None = None) -> list[dict[str, Any]]:
        """The audit trail, newest first."""
        wanted = select(AUDIT).order_by(AUDIT.c.at_us.desc(), AUDIT.c.id).limit(limit)
        if before_us is not None:
            wanted = wanted.where(AUDIT.c.at_us < before_us)
        async with self._store.begin() as connection:
            return [dict(row) for row in (await connection.execute(wanted)).mappings()]


async def _project(connection: AsyncConnection, team: str, name: str, actor: str) -> None:
    known = select(PROJECTS.c.name).where(PROJECTS.c.team == team, PROJECTS.c.name == name)
    if (await connection.execute(known)).first() is None:
        await audit.write(connection, actor, "project.create", f"{team}/{name}", after={"team": team, "name": name})
        await connection.execute(insert(PROJECTS).values(team=team, name=name, created_us=clock.now_us()))


def _shown(record: KeyRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _SHOWN}
