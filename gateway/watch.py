"""What other processes changed of keys and people, seen here within two seconds; the database's time; whether it answers."""
from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError

from gateway.access.keys import KeyRing
from gateway.access.people import People
from gateway.core import clock
from gateway.core.background import Background
from gateway.key_table import KeyTable
from gateway.people_table import PeopleTable
from gateway.remembered import Remembered

EVERY_S = 2.0
_log = logging.getLogger("tollway.keys")


class Watch(Background):
    """One task; `start` after the keys were loaded, `close` at the end."""

    task_name = "key-watch"

    def __init__(
        self, ring: KeyRing, keys: KeyTable, people: People, people_table: PeopleTable, remembered: Remembered | None = None
    ) -> None:  # fmt: skip
        self._ring, self._keys, self._people, self._people_table = ring, keys, people, people_table
        self._remembered = remembered
        self.warning: str | None = None
        """What the database's own settings put at risk; None if nothing."""

    async def look(self) -> None:
        """Reads what is new. Raises SQLAlchemy's errors or `OSError` where the database is away."""
        clock.SHARED.correct(await self._keys.ahead_us())
        self._ring.put(*await self._keys.load(self._ring.newest_us))
        self._people.replace(await self._people_table.load())
        self.warning = await self._keys.warning()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except (SQLAlchemyError, OSError) as error:
                if not self._ring.stale:
                    _log.warning("keys: the database is away (%s); keys used lately go on", type(error).__name__)
                self._ring.stale = True
            else:
                self._ring.stale = False
            if self._remembered is not None:
                await asyncio.to_thread(self._remembered.save, self._ring)
