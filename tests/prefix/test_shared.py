"""Two processes predict as one, and go on alone while Redis is away."""
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from gateway.prefix.index import PrefixIndex
from gateway.prefix.shared import SharedIndex
from gateway.redis_link import Away, Link, address
from tests.prefix.test_chain import of
from tests.redis_server import Server

NOW_US = 1_800_000_000_000_000
_orgs = itertools.count()
Pair = tuple[PrefixIndex, SharedIndex]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


async def opened(server: Server, org: str) -> Pair:
    index = PrefixIndex()
    link = Link(address(server.url), timeout_s=5.0)
    shared = SharedIndex(index, link, org, every_s=3_600)
    await shared.start()
    await link.start(5.0)
    return index, shared


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass")


@pytest_asyncio.fixture
async def two(server: Server) -> AsyncIterator[tuple[Pair, Pair]]:
    org = f"o{next(_orgs)}"
    one, other = await opened(server, org), await opened(server, org)
    yield one, other
    await one[1].close()
    await other[1].close()


async def test_what_one_learns_the_other_predicts(two: tuple[Pair, Pair]) -> None:
    (one, sends), (other, takes) = two
    talk = of([b"system", b"question"])
    one.learn("team", "pool", talk, 900, NOW_US, 300)
    assert other.predict("team", "pool", talk, NOW_US) == 0
    await sends.turn()
    await takes.turn()
    assert other.predict("team", "pool", talk, NOW_US) == 900
    assert other.predict("other", "pool", talk, NOW_US) == 0


async def test_a_late_comer_reads_the_last_minutes(two: tuple[Pair, Pair], server: Server) -> None:
    (one, sends), _ = two
    many = [of([b"%d" % n]) for n in range(12_000)]
    for chain in many:
        one.learn("team", "pool", chain, 50, NOW_US, 300)
    await sends.turn()
    late, takes = await opened(server, sends._stream.split(":")[1])
    await takes.turn()
    assert all(late.predict("team", "pool", chain, NOW_US) == 50 for chain in many)
    await takes.close()


async def test_renewals_are_told_once_in_a_while(two: tuple[Pair, Pair]) -> None:
    (one, sends), _ = two
    talk = of([b"system"])
    one.learn("team", "pool", talk, 900, NOW_US, 300)
    await sends.turn()
    for second in (1, 5, 14):
        one.learn("team", "pool", talk, 900, NOW_US + second * 1_000_000, 300)
    assert one.fresh == {}
    one.learn("team", "pool", talk, 900, NOW_US + 40_000_000, 300)
    assert one.fresh


async def test_away_it_waits_and_tells_later() -> None:
    server = Server()
    one, sends = await opened(server, "away")
    other, takes = await opened(server, "away")
    talk = of([b"system"])
    server.kill()
    one.learn("team", "pool", talk, 900, NOW_US, 300)
    await until(lambda: not sends._link.up)
    with pytest.raises(Away):
        await sends.turn()
    assert one.predict("team", "pool", talk, NOW_US) == 900
    assert one.fresh
    server.start()
    await until(lambda: sends._link.up and takes._link.up)
    await sends.turn()
    await takes.turn()
    assert other.predict("team", "pool", talk, NOW_US) == 900
    await sends.close()
    await takes.close()
    server.stop()
