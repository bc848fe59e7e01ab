"""How each gateway process says it is: a row of each, for the dashboard, which cannot ask them itself."""
from __future__ import annotations

from typing import Any

from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core import clock
from gateway.ledger.sql import Store
from gateway.ledger.watch_tables import STATUS

KEEP_US = 86_400 * 1_000_000
"""A process that said nothing for a day is gone."""


class StatusTable:
    """Writes through the process's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._insert = sqlite.insert if store.url.startswith("sqlite") else postgresql.insert

    async def say(self, gateway: str, detail: dict[str, Any]) -> None:
        """In place of what it said before."""
        now_us = clock.now_us()
        changed = {"at_us": now_us, "detail": detail}
        row = self._insert(STATUS).values(gateway=gateway, **changed)
        async with self._store.begin() as connection:
            await connection.execute(row.on_conflict_do_update(index_elements=["gateway"], set_=changed))
            await connection.execute(delete(STATUS).where(STATUS.c.at_us < now_us - KEEP_US))
