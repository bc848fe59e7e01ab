"""PROG records: once a second, what each running stream has produced so far, so that a death books it as far as it had come;
and once a minute, that its hold is still needed.

Nothing is counted on a stream's own way: a task looks at all of them and estimates by length.
"""
from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.core.background import Background
from gateway.ledger.journal import Journal, JournalError
from gateway.stretch import RENEW_S

EVERY_S = 1.0
_CHARACTERS_PER_TOKEN = 4
_log = logging.getLogger("tollway.journal")

Produced = Callable[[], Callable[[], str] | None]
"""Gives the function that gives the text so far; None while there is none."""


class ProgressNotes(Background):
    """One task per process."""

    task_name = "progress"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._running: dict[str, tuple[Produced, Callable[[], Awaitable[None]]]] = {}
        self._seconds: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def began(self, attempt_id: str, produced: Produced, renew: Callable[[], Awaitable[None]]) -> None:
        self._running[attempt_id] = produced, renew

    def ended(self, attempt_id: str) -> None:
        self._running.pop(attempt_id, None)
        self._told.pop(attempt_id, None)
        self._seconds.pop(attempt_id, None)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for attempt_id, (produced, renew) in list(self._running.items()):
                self._note(attempt_id, produced())
                await asyncio.sleep(0)
                if attempt_id in self._running:
                    self._seconds[attempt_id] = seconds = self._seconds.get(attempt_id, 0) + 1
                    if seconds % RENEW_S == 0:
                        await renew()

    def _note(self, attempt_id: str, produced: Callable[[], str] | None) -> None:
        if produced is None or attempt_id not in self._running:
            return
        tokens = -(-len(produced()) // _CHARACTERS_PER_TOKEN)
        if tokens == self._told.get(attempt_id, 0):
            return
        self._told[attempt_id] = tokens
        try:
            self._journal.progress(attempt_id, tokens)
        except JournalError as error:           # its settling will say so too
            _log.warning("progress of %s is not in the journal: %s", attempt_id, error)
