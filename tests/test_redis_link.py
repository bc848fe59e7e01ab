"""One connection for all commands: in order, never confused, quick to say that the server is away."""
from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvloop

from gateway.redis_link import Away, BadAddress, Link, Refused, address
from tests.redis_server import Server
from tests.upstream import PATIENCE_S


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    made = Link(address(server.url), timeout_s=PATIENCE_S)
    assert await made.start(PATIENCE_S)
    yield made
    await made.close()


async def test_many_at_once_get_their_own_answers(link: Link) -> None:
    """A thousand commands in flight on one socket."""
    answers = await asyncio.gather(*(link.call("ECHO", f"{n}") for n in range(1_000)))
    assert answers == [str(n).encode() for n in range(1_000)]


async def test_a_cancelled_waiter_disturbs_nobody(link: Link) -> None:
    """Its answer is read and forgotten; the next one gets its own (T21)."""
    async def ask(n: int) -> bytes:
        answer: bytes = await link.call("ECHO", str(n))
        return answer
    for n in range(50):
        lost = asyncio.create_task(ask(-n))
        await asyncio.sleep(0)
        lost.cancel()
        assert await ask(n) == str(n).encode()


async def test_an_error_is_one_commands_own(link: Link) -> None:
    """Those beside it are answered."""
    first, wrong, last = (link.call(*words) for words in (("ECHO", "a"), ("NONSENSE",), ("ECHO", "b")))
    assert await first == b"a"
    with pytest.raises(Refused, match="unknown command"):
        await wrong
    assert await last == b"b"


async def test_a_server_that_stands_still_costs_one_wait(server: Server) -> None:
    """SIGSTOP: who waits is told once, the connection is closed, and who comes then is told at once."""
    link = Link(address(server.url))
    await link.start()
    await until_up(link)
    server.pause()
    try:
        with pytest.raises(Away, match="no answer in 200 ms"):
            await link.call("PING")
        began = time.monotonic()
        for _ in range(100):
            with pytest.raises(Away):
                link.call("PING")
        assert time.monotonic() - began < 15, "a hundred waits would take twenty seconds"
        assert link.problem is not None
    finally:
        server.resume()
    link._timeout_s = PATIENCE_S
    await until_up(link)
    assert await link.call("ECHO", "again") == b"again"
    await link.close()


async def test_it_comes_back_by_itself(server: Server, link: Link) -> None:
    """SIGKILL and a new server: another run id, the same link."""
    run_id = link.run_id
    server.kill()
    with contextlib.suppress(Away):
        await link.call("PING")
    server.start()
    await until_up(link)
    assert link.run_id != run_id
    assert await link.call("PING") == b"PONG"


async def test_a_password_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong one is told without it."""
    guarded = Server("--requirepass", "canary-pass")
    try:
        good = Link(address(f"redis://:canary-pass@127.0.0.1:{guarded.port}"), timeout_s=PATIENCE_S)
        assert await good.start(PATIENCE_S)
        assert await good.call("PING") == b"PONG"
        await good.close()
        bad = Link(address(f"redis://:canary-wrong@127.0.0.1:{guarded.port}/2"), timeout_s=PATIENCE_S)
        assert not await bad.start(0.3)
        async with asyncio.timeout(PATIENCE_S):
            while "WRONGPASS" not in (bad.problem or ""):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await bad.close()
    finally:
        guarded.stop()
    assert "canary" not in caplog.text + repr(good.server) + (bad.problem or "")


@pytest.mark.parametrize("url", ["http://x", "redis://", "redis://x:y", "redis://x/one", "redis://x?db=1", "x:6379"])
def test_a_bad_address_is_told_at_once(url: str) -> None:
    """Before anything tries to connect."""
    with pytest.raises(BadAddress):
        address(url)


def test_an_address_is_read_whole() -> None:
    """TLS by its scheme, odd characters in secrets unquoted."""
    found = address("valkeys://ann:p%40ss@cache.example:7000/3")
    assert (found.host, found.port, found.db, found.user, found.password, found.tls) == ("cache.example", 7000, 3, "ann", "p@ss", True)


async def until_up(link: Link) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not link.up:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_connection_that_breaks_before_it_is_written_to_fails_its_command_only(server: Server) -> None:
    """Commands go out at the end of a turn of the loop; uvloop takes a write into a broken connection for a mistake of ours."""

    async def broken() -> tuple[list[Any], BaseException | None]:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        made = Link(address(server.url), timeout_s=PATIENCE_S)
        assert await made.start(PATIENCE_S)
        wire = made._wire
        assert wire is not None
        assert wire._transport is not None
        wire._transport.abort()  # it is told of that in the next turn, before its command goes out
        asked = wire.send(("PING",))
        await asyncio.wait([asked])
        await asyncio.sleep(0)
        await made.close()
        return faults, asked.exception()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        faults, error = runner.run(broken())
    assert faults == []
    assert isinstance(error, Away)
