"""Cohorts over several processes, through the house and through Redis: one leads, the others hear how that ended."""
from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
import pytest_asyncio

from gateway.ledger.sql import Store
from gateway.planner.cohorts import Joined, Others
from gateway.redis_cohorts import RedisCohorts
from gateway.redis_link import Link, address
from gateway.workers.cohorts import FarCohorts
from gateway.workers.errors import CODECS
from gateway.workers.house import House, _Room
from gateway.workers.link import connect
from tests.redis_server import Server

SHARED, OWN, LONG_S = 1, 2, 60.0
LEADS = Joined(-1)
_orgs = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest_asyncio.fixture(params=["house", "redis"])
async def two(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[tuple[Others, Others]]:
    """Two processes."""
    async with AsyncExitStack() as running:
        found: list[Others] = []
        nothing = cast(Any, None)
        house, org = House(Store("sqlite:///unused.db"), nothing, nothing, nothing), f"cohorts{next(_orgs)}"
        for _ in range(2):
            if request.param == "house":
                a, b = socket.socketpair()
                near, far = await connect(a, _Room(house).methods(), lambda: None, CODECS), await connect(b, {}, lambda: None, CODECS)
                running.callback(near.close)
                running.callback(far.close)
                found.append(FarCohorts(far))
            else:
                cohorts = RedisCohorts(Link(address(server.url), timeout_s=5.0), org)
                await cohorts._link.start(5.0)
                running.push_async_callback(cohorts.close)
                found.append(cohorts)
        yield found[0], found[1]


def cold(*names: int, worth_s: float = LONG_S) -> list[tuple[int, float]]:
    return [(name, worth_s) for name in names]


async def test_the_first_leads_and_the_second_hears_when_it_has_begun(two: tuple[Others, Others]) -> None:
    """Also one of its own process, and one that comes a moment too late to have heard of it."""
    one, other = two
    assert await one.join(1, cold(SHARED, 10)) == LEADS
    waiting = [asyncio.create_task(each.join(2, cold(SHARED, n))) for n, each in ((11, other), (12, one), (13, other))]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    one.begun(1)
    assert await asyncio.gather(*waiting) == [Joined(0, "begun")] * 3
    one.end(1)
    assert await other.join(3, cold(SHARED, 14)) == Joined(0, "begun")


async def test_a_leader_that_fails_is_told_of_and_another_may_lead(two: tuple[Others, Others]) -> None:
    one, other = two
    assert await one.join(1, cold(SHARED)) == LEADS
    waiting = asyncio.create_task(other.join(1, cold(SHARED)))
    await asyncio.sleep(0.05)
    one.end(1)
    assert await waiting == Joined(0, "gone")
    assert await other.join(2, cold(SHARED)) == LEADS
    assert await one.join(2, cold(SHARED, worth_s=0.01)) == Joined(0, "late")


async def test_the_longest_prefix_that_is_written_is_waited_for(two: tuple[Others, Others]) -> None:
    one, other = two
    assert await one.join(1, cold(SHARED)) == LEADS
    assert await other.join(1, cold(OWN)) == LEADS
    assert await one.join(2, cold(SHARED, OWN, 3, worth_s=0.01)) == Joined(1, "late")


async def test_what_two_have_nothing_of_in_common_holds_up_nobody(two: tuple[Others, Others]) -> None:
    one, other = two
    assert await asyncio.gather(one.join(1, cold(SHARED)), other.join(1, cold(OWN)), one.join(2, cold(3))) == [LEADS] * 3


async def test_who_is_cancelled_leads_no_more(two: tuple[Others, Others]) -> None:
    """Whether its answer was on the way or not; where the house or Redis has not heard of it, a lease ends by itself."""
    one, other = two
    asked = asyncio.create_task(one.join(1, cold(SHARED)))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    joined = await other.join(1, cold(SHARED))
    assert joined == LEADS or joined.ended == "gone"
