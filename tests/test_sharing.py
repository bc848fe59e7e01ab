"""Two processes predict, plan and normalize as one, and go on alone while Redis is away."""
from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from gateway.backends.news import LaneNews, News
from gateway.normalize import Memory
from gateway.planner import Planner
from gateway.planner.bets import Limit
from gateway.planner.values import Stake
from gateway.prefix.index import PrefixIndex
from gateway.redis_link import Away, Link, address
from gateway.sharing import RedisExchange, Sharing, Topic, topics
from tests.backends.test_news import Process
from tests.normalize.views import assistant, run, system, user
from tests.planner.test_planner import RATES, marks, plan, turns
from tests.prefix.test_chain import of
from tests.redis_server import Server

NOW_US = 1_800_000_000_000_000
_orgs = itertools.count()
Pair = tuple["Known", Sharing]


class Known:
    """What one process knows."""

    def __init__(self) -> None:
        self.index, self.memory = PrefixIndex(), Memory()
        self.planner = Planner(lambda provider, model, tier: RATES[provider])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


async def opened(server: Server, org: str) -> Pair:
    known = Known()
    link = Link(address(server.url), timeout_s=60.0)
    shared = Sharing(topics(known.index, known.planner, known.memory), RedisExchange(link, org), every_s=3_600)
    await shared.start()
    await link.start(60.0)
    return known, shared


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3_000):
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
    one.index.learn("team", "pool", talk, 900, NOW_US, 300)
    assert other.index.predict("team", "pool", talk, NOW_US) == 0
    await sends.turn()
    await takes.turn()
    assert other.index.predict("team", "pool", talk, NOW_US) == 900
    assert other.index.predict("other", "pool", talk, NOW_US) == 0


async def test_a_late_comer_reads_the_last_minutes(two: tuple[Pair, Pair], server: Server) -> None:
    (one, sends), _ = two
    many = [of([b"%d" % n]) for n in range(12_000)]
    for chain in many:
        one.index.learn("team", "pool", chain, 50, NOW_US, 300)
    await sends.turn()
    late, takes = await opened(server, sends._exchange._stream.split(":")[1])
    await takes.turn()
    assert all(late.index.predict("team", "pool", chain, NOW_US) == 50 for chain in many)
    await takes.close()


async def test_renewals_are_told_once_in_a_while(two: tuple[Pair, Pair]) -> None:
    (one, sends), _ = two
    talk = of([b"system"])
    one.index.learn("team", "pool", talk, 900, NOW_US, 300)
    await sends.turn()
    for second in (1, 5, 14):
        one.index.learn("team", "pool", talk, 900, NOW_US + second * 1_000_000, 300)
    assert one.index.fresh == {}
    one.index.learn("team", "pool", talk, 900, NOW_US + 40_000_000, 300)
    assert one.index.fresh


async def test_away_it_waits_and_tells_later() -> None:
    server = Server()
    one, sends = await opened(server, "away")
    other, takes = await opened(server, "away")
    talk = of([b"system"])
    server.kill()
    one.index.learn("team", "pool", talk, 900, NOW_US, 300)
    await until(lambda: not sends._exchange.up)
    with pytest.raises(Away):
        await sends.turn()
    assert one.index.predict("team", "pool", talk, NOW_US) == 900
    assert one.index.fresh
    server.start()
    await until(lambda: sends._exchange.up and takes._exchange.up)
    await sends.turn()
    await takes.turn()
    assert other.index.predict("team", "pool", talk, NOW_US) == 900
    await sends.close()
    await takes.close()
    server.stop()


async def test_a_conversation_goes_on_elsewhere_as_it_began(two: tuple[Pair, Pair]) -> None:
    """Its volatile line stands where it stood, its tools travel in the form of its first turn, and it only grows."""
    (one, sends), (other, takes) = two
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "ab"]
    talk, sent = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")], []
    for turn, (process, says) in enumerate(((one, sends), (other, takes), (one, sends))):
        asked = {"tools": tools[:: -1 if turn % 2 else 1], "messages": [system(f"Rules.\nCurrent time: 10:0{turn}"), *talk[: 2 * turn + 1]]}
        done = json.loads(run(process.memory, asked, "relocating").body)
        assert done["tools"] == tools
        assert not sent or done["messages"][: len(sent)] == sent
        sent = done["messages"]
        await says.turn()
        await (takes if says is sends else sends).turn()
    assert sent[0]["content"] == "Rules."


async def test_who_meets_a_conversation_in_the_middle_overrules_nobody(two: tuple[Pair, Pair]) -> None:
    (one, sends), (other, takes) = two
    first, second = ({"messages": [system(f"Rules.\nCurrent time: 10:0{n}"), user(), *[assistant(), user()][: 2 * n]]} for n in range(2))
    run(one.memory, first, "relocating")
    assert run(other.memory, second, "relocating").changes == []
    await takes.turn()
    await sends.turn()
    assert json.loads(run(one.memory, second, "relocating").body)["messages"][0]["content"] == "Rules."


async def test_what_one_has_stored_the_other_reads(two: tuple[Pair, Pair]) -> None:
    """The next turn elsewhere is a turn under way, marked where the first one wrote; and what came again is learnt by both."""
    (one, sends), (other, takes) = two
    _, first = plan(one.planner, turns(0))
    assert first is not None
    one.planner.learn(first, read_tokens=0, input_tokens=2_000, at_us=0)
    await sends.turn()
    await takes.turn()
    body, second = plan(other.planner, turns(1), at_s=20.0)
    assert second is not None
    assert second.held in {each.key for each in first.stored}
    assert marks(body)
    await takes.turn()
    await sends.turn()
    for process in (one, other):
        seen = [reuse.came for name, reuse in process.planner.reuse._kinds.items() if name[0] == "opening"]
        assert sum(map(sum, seen)) > 0


async def test_what_plans_have_saved_covers_bets_of_both(two: tuple[Pair, Pair]) -> None:
    (one, sends), (other, takes) = two
    one.planner.bets.enter(Stake("app", 1_000, 1_000.0, 100.0, 0.1, {"5m": 1.25}))
    assert not other.planner.bets.covers("app", 900.0, Limit(0))
    await sends.turn()
    await takes.turn()
    assert other.planner.bets.covers("app", 900.0, Limit(0))


async def test_news_that_cannot_be_read_are_left(two: tuple[Pair, Pair]) -> None:
    (one, sends), (other, takes) = two
    await sends._exchange.post("held", b"\x93nonsense")
    await sends._exchange.post("of another version", b"\x90")
    one.index.learn("team", "pool", of([b"system"]), 900, NOW_US, 300)
    await sends.turn()
    await takes.turn()
    assert other.index.predict("team", "pool", of([b"system"]), NOW_US) == 900


async def test_what_one_sees_of_a_lane_the_other_hears(server: Server) -> None:
    """Through Redis, as it is said."""
    processes, shared = [Process(), Process()], []
    for process in processes:
        link = Link(address(server.url), timeout_s=60.0)
        topic = Topic("lanes", LaneNews(process.fleet), tuple[str, News])  # type: ignore[arg-type]
        shared.append(Sharing([topic], RedisExchange(link, "lanes"), every_s=3_600))
        await shared[-1].start()
        await link.start(60.0)
    processes[0].lane.cool("answered 429", 30.0)
    for each in shared:
        await each.turn()
    assert "as another process saw" in str(processes[1].why_not())
    for each in shared:
        await each.close()
