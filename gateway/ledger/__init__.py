"""What happened, for ever: one immutable entry per attempt.

Stores append and nothing else; a correction is a new entry whose `corrects` names the old one and whose amounts are the
difference. `journal.py` is the truth (written before an answer's last byte), the SQL tables are projected from it.
"""
from __future__ import annotations

from typing import Protocol

from gateway.core.entry import Entry as Entry


class Ledger(Protocol):
    """Where entries go."""

    async def append(self, entry: Entry) -> None:
        """Returns once the entry survives the death of this process."""
