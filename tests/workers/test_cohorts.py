"""What only the house does: a worker that dies frees whoever waits for it."""
from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import cast

from gateway.planner.cohorts import Joined
from gateway.workers.cohorts import HouseCohorts, RoomCohorts


async def test_a_dead_worker_is_waited_for_no_more() -> None:
    house = HouseCohorts()
    one, other = RoomCohorts(house), RoomCohorts(house)
    assert one.join(1, [(1, 60.0)]) == Joined(-1)
    waits = other.join(1, [(1, 60.0)])
    assert inspect.isawaitable(waits)
    waiting = asyncio.ensure_future(cast("Awaitable[Joined]", waits))
    await asyncio.sleep(0)
    one.leave()
    assert await waiting == Joined(0, "gone")
    assert other.join(2, [(1, 60.0)]) == Joined(-1)


async def test_what_has_begun_is_remembered_for_a_moment_only() -> None:
    """By then all workers know it from each other."""
    house = HouseCohorts()
    room = RoomCohorts(house)
    for lead in range(100):
        room.join(lead, [(lead, 60.0)])
        room.begun(lead)
    assert house.can_be_read(0)
    assert len(house._begun) == 100
    house._begun = dict.fromkeys(house._begun, 0.0)
    room.join(100, [(100, 60.0)])
    room.begun(100)
    assert list(house._begun) == [100]
    assert not len(house.leaders)
