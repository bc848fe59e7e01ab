"""Work that goes on beside the calls."""
from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import ClassVar


class Background(ABC):
    """Runs from `start` to `close`, on the loop of whoever starts it. What was never started may be closed."""

    task_name: ClassVar[str]
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.task_name)

    async def close(self) -> None:
        """Ends it where it waits, and waits until it has ended."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @abstractmethod
    async def _run(self) -> None:
        """Goes on until it is cancelled."""
