"""The list has the same manners as the databases; `tests/contracts/test_ledgers.py` has the rest."""
from __future__ import annotations

from gateway.ledger.memory import MemoryLedger
from tests.ledger.generate import entry


async def test_entries_cannot_be_changed_from_outside() -> None:
    ledger = MemoryLedger()
    await ledger.append(entry())
    ledger.entries.clear()
    assert ledger.entries == [entry()]
