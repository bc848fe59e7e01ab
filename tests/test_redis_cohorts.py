"""What only Redis does: a lease that its process does not renew ends, and with the server away nobody waits."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.planner.cohorts import Joined
from gateway.redis_cohorts import RedisCohorts
from gateway.redis_link import Link, address
from tests.redis_server import Server

COLD = [(1, 60.0)]


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


async def opened(server: Server) -> RedisCohorts:
    cohorts = RedisCohorts(Link(address(server.url), timeout_s=5.0), "org")
    await cohorts._link.start(5.0)
    return cohorts


async def test_a_lease_is_renewed_while_its_process_lives_and_ends_with_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.redis_cohorts._LOOKS_A_RENEWAL", 1)
    one, other = await opened(server), await opened(server)
    assert await one.join(1, COLD) == Joined(-1)
    waiting = asyncio.create_task(other.join(1, COLD))
    key = f"{one._prefix}1"
    await one._link.call("PEXPIRE", key, 900_000)
    while await one._link.call("PTTL", key) > 3_000:  # noqa: ASYNC110 - until it is renewed
        await asyncio.sleep(0.01)
    assert not waiting.done()
    await one.close()  # as if killed: it says nothing
    assert await waiting == Joined(0, "gone")
    await other.close()


async def test_with_the_server_away_everybody_goes_on(server: Server) -> None:
    """Who waits is freed, who asks leads."""
    one, other = await opened(server), await opened(server)
    assert await one.join(1, COLD) == Joined(-1)
    waiting = asyncio.create_task(other.join(1, COLD))
    await asyncio.sleep(0.05)
    server.kill()
    assert await waiting == Joined(0, "gone")
    assert await other.join(2, COLD) == Joined(-1)
    one.begun(1)
    other.end(2)
    await one.close()
    await other.close()


async def test_nothing_runs_and_nothing_stays_when_all_is_over(server: Server) -> None:
    one = await opened(server)
    assert await one.join(1, COLD) == Joined(-1)
    one.begun(1)
    assert one._tending is not None
    await one._tending
    assert await one._link.call("PTTL", f"{one._prefix}1") <= 2_000
    assert await one.join(2, [(2, 60.0)]) == Joined(-1)
    one.end(2)
    assert await one._link.call("EXISTS", f"{one._prefix}2") == 0
    await one.close()
