"""What runs beside the calls ends when it is closed."""
from __future__ import annotations

import asyncio

import pytest

from gateway.core.background import Background


class Counter(Background):
    task_name = "counter"

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.turns, self.began, self.ended = fails, 0, asyncio.Event(), False

    async def _run(self) -> None:
        try:
            while True:
                self.turns += 1
                self.began.set()
                if self.fails:
                    raise ValueError
                await asyncio.sleep(0)
        finally:
            self.ended = True


async def test_it_runs_until_it_is_closed() -> None:
    """`close` returns when it has ended, and may come again."""
    one = Counter()
    one.start()
    await one.began.wait()
    assert "counter" in {task.get_name() for task in asyncio.all_tasks()}
    await one.close()
    turns = one.turns
    assert one.ended
    await asyncio.sleep(0.01)
    assert one.turns == turns
    await one.close()


async def test_what_was_not_started_may_be_closed() -> None:
    await Counter().close()


async def test_a_fault_that_ended_it_is_told_by_close() -> None:
    """Not lost with the task."""
    one = Counter(fails=True)
    one.start()
    await one.began.wait()
    await asyncio.sleep(0)
    with pytest.raises(ValueError):
        await one.close()
