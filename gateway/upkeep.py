"""What the gateway does from time to time, beside calls: it adds to the roll-ups that reports read, looks for alerts, and
says how it is.

A database that is away costs nothing but time: the next turn tries again.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from gateway.ledger.rollups import Roller

EVERY_S = 15.0
_BREATH_S, _BREATHS = 0.02, 4.0
"""After each step of the roll-ups so long a rest, and so many times as long as the step took: calls that come in the
meantime shall not notice."""
_log = logging.getLogger("tollway.upkeep")

Job = Callable[[], Awaitable[None]]


class Upkeep:
    """`start`, and `close` before the database is closed. Jobs run one after the other. Without a roller it is somebody else
    who keeps the roll-ups."""

    def __init__(self, roller: Roller | None, jobs: Sequence[Job] = (), every_s: float | None = None) -> None:
        self._roller = roller
        self._jobs = [*jobs] if roller is None else [self.roll, *jobs]
        self._every_s = EVERY_S if every_s is None else every_s
        self._closing, self._wake = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checked = False
        self._failing: dict[Job, str] = {}

    def add(self, job: Job) -> None:
        """From the next turn on, which begins now."""
        self._jobs.append(job)
        self._wake.set()

    def drop(self, job: Job) -> None:
        self._jobs.remove(job)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="upkeep")

    async def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            await self._task

    async def roll(self) -> None:
        """Add to the roll-ups until nothing is left; calls are served between the steps."""
        assert self._roller is not None
        if not self._checked and await self._roller.damaged():
            _log.warning("the roll-ups do not fit the ledger and are made again; until then reports take longer")
            await self._roller.reset()
        self._checked = True
        began_s = time.monotonic()
        while (await self._roller.step()).left and not self._closing.is_set():
            await _wait(self._closing, max(_BREATH_S, _BREATHS * (time.monotonic() - began_s)))
            began_s = time.monotonic()

    async def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            for job in list(self._jobs):
                await self._try(job)
            await _wait(self._wake, self._every_s)

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


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), most_s)
