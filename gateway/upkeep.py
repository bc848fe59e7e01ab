"""What the gateway does from time to time, beside calls: it adds to the roll-ups that reports read, looks for alerts, and
says how it is.

A database that is away costs nothing but time: the next turn tries again.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from gateway.ledger.rollups import Roller

EVERY_S = 15.0
_BREATH_S = 0.02
_log = logging.getLogger("tollway.upkeep")

Job = Callable[[], Awaitable[None]]


class Upkeep:
    """`start`, and `close` before the database is closed. Jobs run one after the other."""

    def __init__(self, roller: Roller, jobs: Sequence[Job] = (), every_s: float | None = None) -> None:
        self.roller = roller
        self._jobs, self._every_s = [self.roll, *jobs], EVERY_S if every_s is None else every_s
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checked = False
        self._failing: dict[Job, str] = {}

    def add(self, job: Job) -> None:
        """From the next turn on."""
        self._jobs.append(job)

    def drop(self, job: Job) -> None:
        self._jobs.remove(job)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="upkeep")

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def roll(self) -> None:
        """Add to the roll-ups until nothing is left; calls are served between the steps."""
        if not self._checked and await self.roller.damaged():
            _log.warning("the roll-ups do not fit the ledger and are made again; until then reports take longer")
            await self.roller.reset()
        self._checked = True
        while (await self.roller.step()).left and not self._stop.is_set():
            await self._pause(_BREATH_S)

    async def _run(self) -> None:
        while not self._stop.is_set():
            for job in list(self._jobs):
                await self._try(job)
            await self._pause(self._every_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _try(self, job: Job) -> None:
        """One failure, one line in the log, however long it lasts."""
        try:
            await job()
            self._failing.pop(job, None)
        except (SQLAlchemyError, OSError) as error:
            said = type(error).__name__
            if self._failing.get(job) != said:
                _log.warning("upkeep waits for the database (%s)", error)
            self._failing[job] = said
        except Exception:
            if self._failing.get(job) != "?":
                _log.exception("upkeep failed; it tries again")
            self._failing[job] = "?"
