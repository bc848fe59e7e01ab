"""Our HTTP client against real sockets: pooled, bounded, and stoppable at any moment."""
from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from gateway.backends.http import Address, Answer, NoAnswer, Request, Stop
from gateway.backends.wire import WireTransport
from tests.build import free_port
from tests.upstream import HANG, PATIENCE_S, RESET, End, Gate, Pause, Reply, Site, Upstream, raw, until, whole

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def site(upstream: Upstream, request: pytest.FixtureRequest) -> Site:
    return upstream.site(f"wire-{abs(hash(request.node.nodeid))}")


@pytest.fixture
async def wire() -> AsyncIterator[WireTransport]:
    transport = WireTransport()
    yield transport
    await transport.aclose()
    await asyncio.sleep(0)


def request(site: Site, body: bytes = b"{}", stop: Stop | None = None, read_s: float | None = PATIENCE_S, url: str | None = None) -> Request:
    return Request("POST", Address.of(url or f"{site.url}/x"), [(b"x-a", b"b")], body, PATIENCE_S, read_s, stop or Stop())


async def read(answer: Answer) -> bytes:
    got: list[bytes] = []
    await answer.pump(lambda chunk: got.append(chunk) is None)
    return b"".join(got)


async def ask(wire: WireTransport, site: Site, **fields: Any) -> bytes:
    return await read(await wire.send(request(site, **fields)))


@pytest.mark.parametrize(("reply", "body"), [
    pytest.param(Reply(steps=(b"hello",)), b"hello", id="length"),
    pytest.param(Reply(steps=()), b"", id="empty"),
    pytest.param(Reply(steps=(b"hel", Pause(0.01), b"lo"), framing="chunked"), b"hello", id="chunked"),
    pytest.param(Reply(steps=(b"hel", Pause(0.01), b"lo"), framing="close"), b"hello", id="until close"),
    pytest.param(Reply(steps=(b"x" * 300_000,)), b"x" * 300_000, id="large"),
    pytest.param(raw(OK + b"content-length: 5\r\nconnection: close\r\n\r\nhello"), b"hello", id="connection close"),
    pytest.param(raw(b"HTTP/1.0 200 OK\r\n\r\nhello"), b"hello", id="HTTP/1.0"),
    pytest.param(raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + b"content-length: 5\r\n\r\nhello"), b"hello", id="1xx before"),
    pytest.param(raw(b"HTTP/1.1 204 No Content\r\n\r\n"), b"", id="204"),
    pytest.param(raw(*[bytes([b]) for b in OK + b"content-length: 5\r\n\r\nhello"]), b"hello", id="byte by byte"),
    pytest.param(raw(OK + b"transfer-encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\ntrailer: x\r\n\r\n"), b"hello", id="chunk extension and trailer"),
])  # fmt: skip
async def test_a_body_arrives_whole(wire: WireTransport, site: Site, reply: Reply, body: bytes) -> None:
    """However it is framed, and however it is cut on the way."""
    site.says(reply)
    answer = await wire.send(request(site))
    assert await read(answer) == body
    assert all(name == name.lower() for name, _ in answer.headers)
    assert b"link" not in dict(answer.headers)


async def test_a_request_arrives_whole(wire: WireTransport, site: Site) -> None:
    """Head, our headers, and a body of any size."""
    site.says(whole({}))
    for size in (0, 10, 100_000, 3_000_000):
        await ask(wire, site, body=b"x" * size)
        got = site.requests[-1]
        assert (got.method, got.body, got.headers["x-a"]) == ("POST", b"x" * size, "b")
        assert got.headers["content-length"] == str(size)


async def test_a_connection_is_used_again(wire: WireTransport, site: Site) -> None:
    """One after the other on one socket; at the same time on several."""
    site.says(whole({}, before=(Pause(0.05),)))
    for _ in range(3):
        await ask(wire, site)
    assert len({got.port for got in site.requests}) == 1
    await asyncio.gather(*(ask(wire, site) for _ in range(5)))
    assert len({got.port for got in site.requests[3:]}) == 5


@pytest.mark.parametrize("reply", [
    pytest.param(raw(OK + b"connection: close\r\ncontent-length: 2\r\n\r\n{}", Pause(0.2)), id="connection close"),
    pytest.param(raw(OK + b"content-length: 2\r\n\r\n{}extra", Pause(0.2)), id="bytes behind the end"),
    pytest.param(Reply(steps=(b"{}",), framing="close"), id="until close"),
])  # fmt: skip
async def test_a_connection_that_is_out_of_step_is_not_used_again(wire: WireTransport, site: Site, reply: Reply) -> None:
    """Whatever a server says behind its answer is never the next answer."""
    site.says(reply, whole({}))
    assert await ask(wire, site) == b"{}"
    await asyncio.sleep(0.05)
    assert await ask(wire, site) == b"{}"
    assert len({got.port for got in site.requests}) == 2


async def test_a_connection_closed_meanwhile_is_not_missed(wire: WireTransport, site: Site, upstream: Upstream) -> None:
    """A server that dropped its idle connections is simply dialled again."""
    site.says(whole({}))
    await ask(wire, site)
    await asyncio.to_thread(upstream.drop_idle)
    await asyncio.sleep(0.05)
    assert await ask(wire, site) == b"{}"


async def test_a_connection_closed_at_the_same_moment_is_dialled_again(wire: WireTransport, site: Site) -> None:
    """The server closes just as the request arrives: it is sent once more, on a fresh connection, and once only."""
    site.says(whole({}), RESET, whole({}))
    await ask(wire, site)
    assert await ask(wire, site) == b"{}"
    assert len(site.requests) == 3
    site.says(RESET)
    with pytest.raises(NoAnswer):
        await ask(wire, site)
    assert len(site.requests) == 5


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_came_in_time_counts_though_the_loop_was_busy(site: Site, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A connection, a head, a body: each was there long before the loop got to look at its clock. One of a few tries must show
    it: on a slow machine the server, which is in this process, may itself be late."""
    limit_s = 0.1

    def busy(until_then: Callable[[], object]) -> None:
        until_then()
        time.sleep(3 * limit_s)

    def sent(steps: int) -> Callable[[], object]:
        return lambda: until(lambda: site.requests[-1].steps_sent >= steps, f"{steps} steps")

    async def work() -> bytes:
        gate, seen = Gate(), len(site.requests)
        site.says(Reply(steps=(b"hello", gate, b"world"), framing="chunked"))
        wire, loop, got = WireTransport(), asyncio.get_running_loop(), []
        loop.call_soon(busy, int)  # after the connection was asked for
        asked = Request("POST", Address.of(f"{site.url}/x"), [], b"{}", limit_s, limit_s, Stop())
        sending = asyncio.create_task(wire.send(asked))
        await asyncio.to_thread(site.wait_for, seen + 1)
        loop.call_soon(busy, sent(1))
        answer = await sending
        answer.read_timeout_s = limit_s
        loop.call_soon(busy, lambda: (gate.open(), sent(2)()))
        await answer.pump(lambda chunk: got.append(chunk) is None)
        await wire.aclose()
        return b"".join(got)

    def in_time() -> bool:
        with asyncio.Runner(loop_factory=new_loop) as runner, contextlib.suppress(httpx.TimeoutException):
            return runner.run(work()) == b"helloworld"
        return False

    assert any(in_time() for _ in range(5))


@pytest.mark.parametrize(("reply", "error"), [
    pytest.param(RESET, NoAnswer, id="reset"),
    pytest.param(raw(), NoAnswer, id="closed"),
    pytest.param(raw(b"SSH-2.0-OpenSSH\r\n"), httpx.RemoteProtocolError, id="not HTTP"),
    pytest.param(raw(OK + b"content-len"), httpx.RemoteProtocolError, id="half a head"),
    pytest.param(raw(OK + b"x: " + b"a" * 2_000_000), httpx.RemoteProtocolError, id="a head without end"),
    pytest.param(raw(OK + b"content-length: five\r\n\r\n"), httpx.RemoteProtocolError, id="a length that is none"),
    pytest.param(HANG, httpx.ReadTimeout, id="silence"),
    pytest.param(raw(OK, End.HANG), httpx.ReadTimeout, id="silence in the head"),
])  # fmt: skip
async def test_a_head_that_does_not_come_is_an_error(wire: WireTransport, site: Site, reply: Reply, error: type[Exception]) -> None:
    """`NoAnswer` only where not a byte of an answer came."""
    site.says(reply)
    with pytest.raises(error) as caught:
        await wire.send(request(site, read_s=0.4 if error is httpx.ReadTimeout else PATIENCE_S))
    assert isinstance(caught.value, NoAnswer) is (error is NoAnswer)


@pytest.mark.parametrize(("steps", "error"), [
    pytest.param((b"hel", Pause(0.05), End.CUT), httpx.RemoteProtocolError, id="cut"),
    pytest.param((b"hel", Pause(0.05), End.RESET), httpx.ReadError, id="reset"),
    pytest.param((b"hel", End.HANG), httpx.ReadTimeout, id="silence"),
])  # fmt: skip
async def test_a_body_that_breaks_off_is_an_error(wire: WireTransport, site: Site, steps: Any, error: type[Exception]) -> None:
    """What came before is given out first."""
    site.says(Reply(steps=(*steps, b"lo"), framing="chunked"))
    answer = await wire.send(request(site))
    if error is httpx.ReadTimeout:
        answer.read_timeout_s = 0.3
    got: list[bytes] = []
    with pytest.raises(error):
        await answer.pump(lambda chunk: got.append(chunk) is None)
    assert b"".join(got) == b"hel"


async def test_a_taker_may_stop_and_go_on(wire: WireTransport, site: Site) -> None:
    """Nothing is lost between, nothing comes twice, and what the taker throws is thrown to whoever pumps."""
    site.says(Reply(steps=tuple(b"%d," % n for n in range(50)), framing="chunked"))
    answer = await wire.send(request(site))
    got: list[bytes] = []

    def some(chunk: bytes) -> bool:
        got.append(chunk)
        return len(got) % 3 != 0

    for _ in range(60):
        await answer.pump(some)
    assert b"".join(got) == b"".join(b"%d," % n for n in range(50))

    def throws(chunk: bytes) -> bool:
        raise ZeroDivisionError

    again = await wire.send(request(site))
    with pytest.raises(ZeroDivisionError):
        await again.pump(throws)
    await again.aclose()


async def test_nobody_there_means_nothing_was_sent(wire: WireTransport, site: Site) -> None:
    with pytest.raises(httpx.ConnectError):
        await wire.send(request(site, url=f"http://127.0.0.1:{free_port()}/"))
    with pytest.raises(httpx.ConnectError):
        await wire.send(request(site, url="http://no-such-host.invalid/"))


# stopping


async def test_stop_before_anything_was_sent(wire: WireTransport, site: Site) -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(httpx.ConnectError):
        await wire.send(request(site, stop=stop))
    assert site.requests == []


@pytest.mark.parametrize("reused", [False, True])
async def test_stop_while_waiting_for_the_head(wire: WireTransport, site: Site, reused: bool) -> None:
    """The waiter is told at once, the server too, and nothing is sent a second time."""
    site.says(*[whole({})] * reused, HANG)
    if reused:
        await ask(wire, site)
    stop = Stop()
    waiting = asyncio.ensure_future(wire.send(request(site, stop=stop)))
    await asyncio.to_thread(site.wait_for, 1 + reused)
    stop.set()
    with pytest.raises(httpx.ReadError):
        await asyncio.wait_for(waiting, PATIENCE_S / 2)
    assert await asyncio.to_thread(site.requests[-1].hung_up.wait, PATIENCE_S / 2)
    assert len(site.requests) == 1 + reused


async def test_stop_while_reading(wire: WireTransport, site: Site) -> None:
    site.says(Reply(steps=(b"hel", Gate()), framing="chunked"))
    stop = Stop()
    answer = await wire.send(request(site, stop=stop))
    got: list[bytes] = []
    await answer.pump(got.append)  # type: ignore[arg-type]  # gives None: no more for the moment
    assert got == [b"hel"]
    stop.set()
    with pytest.raises(httpx.ReadError):
        await asyncio.wait_for(answer.pump(lambda _: True), PATIENCE_S / 2)
    assert await asyncio.to_thread(site.requests[0].hung_up.wait, PATIENCE_S / 2)


async def test_stop_after_the_end_does_no_harm(wire: WireTransport, site: Site) -> None:
    """The connection may serve somebody else by then."""
    site.says(whole({}), whole({}, before=(Pause(0.2),)))
    stop = Stop()
    await ask(wire, site, stop=stop)
    other = asyncio.ensure_future(ask(wire, site))
    await asyncio.to_thread(site.wait_for, 2)
    stop.set()
    assert await other == b"{}"
    assert len({got.port for got in site.requests}) == 1


async def test_closing_half_way_drops_the_connection(wire: WireTransport, site: Site) -> None:
    """An answer that nobody reads to its end is not left in the pool."""
    site.says(Reply(steps=(b"hel", Gate()), framing="chunked"), whole({}))
    answer = await wire.send(request(site))
    await answer.aclose()
    assert await asyncio.to_thread(site.requests[0].hung_up.wait, PATIENCE_S / 2)
    assert await ask(wire, site) == b"{}"


async def test_a_slow_reader_slows_the_server(wire: WireTransport, site: Site) -> None:
    """What is not read is not gathered up: some 64 KiB here, the rest stays with the server."""
    site.says(Reply(steps=(b"x" * 100_000,) * 200, framing="chunked"))
    answer = await wire.send(request(site))
    await asyncio.sleep(0.3)
    assert site.requests[0].steps_sent < 150
    assert len(await read(answer)) == 20_000_000


async def test_a_paused_connection_is_read_again_in_the_pool(wire: WireTransport, site: Site) -> None:
    """A large answer, read late, leaves a connection that works."""
    site.says(Reply(steps=(b"x" * 200_000,)), whole({}))
    answer = await wire.send(request(site))
    await asyncio.sleep(0.1)
    await read(answer)
    assert await ask(wire, site) == b"{}"


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-made, for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", path, "-out", path.with_suffix(".crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@pytest.fixture(scope="module")
def tls(certificate: Path) -> Iterator[Upstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Upstream(tls=context) as server:
        yield server


async def test_tls_is_spoken_and_verified(tls: Upstream, certificate: Path) -> None:
    """With the certificate known it works and is pooled; unknown, or for another host, nothing is sent."""
    site = tls.site("tls")
    site.says(whole({}))
    knows = WireTransport(ssl.create_default_context(cafile=str(certificate)))
    url = f"https://localhost:{tls.port}/tls/v1/x"
    for _ in range(2):
        assert await read(await knows.send(request(site, url=url))) == b"{}"
    assert len({got.port for got in site.requests}) == 1
    for transport, wrong in ((WireTransport(), url), (knows, url.replace("localhost", "127.0.0.1"))):
        with pytest.raises(httpx.ConnectError):
            await transport.send(request(site, url=wrong))
        await transport.aclose()
    assert len(site.requests) == 2


async def test_no_connection_is_left(upstream: Upstream, site: Site) -> None:
    """`aclose` closes what is idle."""
    site.says(whole({}))
    wire = WireTransport()
    await asyncio.gather(*(ask(wire, site) for _ in range(5)))
    ports = {got.port for got in site.requests}
    await wire.aclose()

    def left() -> set[int]:
        return ports & {connection.transport.get_extra_info("peername")[1] for connection in list(upstream.connections)}

    await asyncio.to_thread(until, lambda: not left(), "connections to close")


async def test_a_connection_that_breaks_as_soon_as_it_is_made_was_sent_nothing(
    wire: WireTransport, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another backend may be asked: it is told as a connection that could not be made, not as a fault of ours."""
    connection = await wire._connect(request(site))
    connection.abort()
    await asyncio.sleep(0)

    async def made(*_: object) -> object:
        return connection

    monkeypatch.setattr(wire, "_connect", made)
    with pytest.raises(httpx.ConnectError, match="broke before anything was sent"):
        await wire.send(request(site))
    assert not site.requests
