"""A ledger in a list, for tests and for trying things out: it ends with its process."""
from __future__ import annotations

from gateway.ledger import Entry


class MemoryLedger:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    async def append(self, entry: Entry) -> None:
        self._entries.setdefault(entry.id, entry)
