"""A call outlives its client: who hangs up stops the backend, and what came until then is booked once."""
from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.build import Gateway, chat_answer, chat_body, chat_chunk, chat_stream, chat_usage, messages_body, messages_stream
from tests.upstream import HANG, PATIENCE_S, Gate, Pause, Reply, Site, Upstream, stream, until, whole

Fresh = Callable[[str], Site]
SOON_S = 40.0
"""Before anything else would stop the backend: its silence is borne for a minute. That it takes 250 ms is C8's to measure."""
CASES = [
    pytest.param("openai", "/v1/chat/completions", chat_body, chat_stream()[:3], id="openai"),
    pytest.param("anthropic", "/v1/messages", messages_body, messages_stream()[:4], id="anthropic"),
]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of a hundred calls at once is refused for having waited, however slow the machine is."""
    monkeypatch.setattr("gateway.admission.MOST_WAIT_S", PATIENCE_S)


def dial(gateway: Gateway, path: str, body: Any, team: str = "plain") -> socket.socket:
    """A raw connection with one request on it."""
    sock = socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key(team)}\r\nContent-Type: application/json\r\n"
    sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return sock


def receive(sock: socket.socket, what: bytes) -> bytes:
    """Reads until `what` has come."""
    got = b""
    while what not in got:
        more = sock.recv(65536)
        assert more, f"closed after {got!r}"
        got += more
    return got


def leave(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def only_attempt(gateway: Gateway, site: Site) -> dict[str, Any]:
    (call,) = gateway.booked(site)
    (attempt,) = call["attempts"]
    found: dict[str, Any] = attempt
    return found


@pytest.mark.parametrize(("dialect", "path", "body", "parts"), CASES)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_leaving_mid_stream_stops_the_backend(
    gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any, parts: list[bytes], how: str
) -> None:
    """The backend's connection is closed at once; the tokens produced so far are an estimate."""
    site = fresh(dialect)
    site.says(stream(*parts, Gate()))
    sock = dial(gateway, path, body(site.model, stream=True))
    receive(sock, b"Hello")
    leave(sock, how)
    assert site.requests[0].hung_up.wait(SOON_S)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"]) == ("client_gone", "mixed" if dialect == "anthropic" else "estimate")
    assert attempt["tokens"]["output"] in range(1, 5)
    assert float(attempt["cost_usd"]) > 0


@pytest.mark.parametrize(("dialect", "path", "body", "parts"), CASES)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("reply", [
    pytest.param(HANG, id="before the status"),
    pytest.param(Reply(steps=(Gate(),), framing="chunked", headers=(("content-type", "text/event-stream"),)), id="before the body"),
])  # fmt: skip
def test_leaving_before_the_first_byte_stops_the_backend(
    gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any, parts: list[bytes], reply: Reply, streamed: bool
) -> None:
    """Also where the client waits for a whole answer; the prompt may have been billed, so it is booked as an estimate."""
    site = fresh(dialect)
    site.says(reply)
    sock = dial(gateway, path, body(site.model, stream=streamed))
    site.wait_for(1)
    time.sleep(0.05)
    sock.close()
    assert site.requests[0].hung_up.wait(SOON_S)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"]) == ("client_gone", "estimate")
    assert attempt["tokens"]["uncached"] > 0


def test_leaving_while_the_answers_body_comes_stops_the_backend(gateway: Gateway, openai: Site) -> None:
    """A whole answer that trickles in is watched too."""
    openai.says(Reply(headers=(("content-type", "application/json"),), steps=(b'{"id": "x", "ch', Gate()), framing="chunked"))
    sock = dial(gateway, "/v1/chat/completions", chat_body(openai.model))
    until(lambda: openai.requests and openai.requests[0].steps_sent, "the first half")
    time.sleep(0.05)
    sock.close()
    assert openai.requests[0].hung_up.wait(SOON_S)
    assert only_attempt(gateway, openai)["status"] == "client_gone"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_drain_reads_on_to_the_providers_figures(gateway: Gateway, openai: Site, streamed: bool) -> None:
    """Policy `hang_up: drain`: the answer is read to its end and booked exactly, though nobody sees it."""
    gate = Gate()
    parts = chat_stream()
    if streamed:
        openai.says(stream(*parts[:3], gate, *parts[3:]))
    else:
        openai.says(whole(chat_answer(), before=(gate,)))
    sock = dial(gateway, "/v1/chat/completions", chat_body(openai.model, stream=streamed), team="drain")
    if streamed:
        receive(sock, b"Hello")
    openai.wait_for(1)
    sock.close()
    assert not openai.requests[0].hung_up.wait(0.5)
    gate.open()
    attempt = only_attempt(gateway, openai)
    assert (attempt["status"], attempt["tokens_from"], attempt["cost_usd"]) == ("ok", "provider", "0.000160000")


def test_a_client_that_stays_is_not_taken_for_gone(gateway: Gateway, openai: Site) -> None:
    """Half-closed sockets aside: a slow backend and a patient client meet."""
    openai.says(stream(*chat_stream()[:3], Pause(0.4), *chat_stream()[3:]))
    sock = dial(gateway, "/v1/chat/completions", chat_body(openai.model, stream=True))
    receive(sock, b"[DONE]")
    sock.close()
    assert only_attempt(gateway, openai)["status"] == "ok"


@pytest.mark.usefixtures("unhurried")
async def test_a_hundred_hang_ups_leak_nothing(gateway: Gateway, upstream: Upstream, openai: Site) -> None:
    """No task, no connection, no lane slot stays behind, and each call is booked once; the lane serves on."""
    until(lambda: gateway.metric("tollway_calls_in_flight") == 0, "earlier calls to end")
    tasks = len(gateway.tasks())
    openai.says(stream(*chat_stream()[:3], Gate()))
    body = json.dumps(chat_body(openai.model, stream=True)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key()}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()

    async def come_and_go(n: int) -> None:
        """Reads nothing, the head, or the beginning of the answer; a gateway that cannot keep up is asked again."""
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            writer.write(head + body)
            if n % 4 == 1:
                await asyncio.sleep(0.001 * n)
            elif n % 4:
                answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                if answer.startswith(b"HTTP/1.1 503 "):
                    assert b'"overloaded"' in await reader.readuntil(b"}}")
                    return await come_and_go(n)
                assert answer.startswith(b"HTTP/1.1 200 ")
                if n % 4 == 2:
                    await asyncio.wait_for(reader.readuntil(b"Hello"), PATIENCE_S)
        finally:
            if n % 2:
                writer.transport.abort()
            else:
                writer.close()

    await asyncio.gather(*(come_and_go(n) for n in range(100)))
    await asyncio.to_thread(until, lambda: gateway.metric("tollway_calls_in_flight") == 0, "all calls to end", PATIENCE_S)
    await asyncio.to_thread(until, lambda: all(r.hung_up.is_set() for r in openai.requests), "the backend to be told", PATIENCE_S)
    booked = await asyncio.to_thread(gateway.attempts, openai)
    assert len(openai.requests) <= booked.pop("client_gone") <= 100  # some left before the backend had read their request
    assert booked == {}
    await asyncio.to_thread(until, lambda: len(gateway.tasks()) <= tasks + 1, "tasks to end")
    open_ports = {connection.transport.get_extra_info("peername")[1] for connection in list(upstream.connections)}
    assert not open_ports & {request.port for request in openai.requests}
    openai.says(stream(*chat_stream(), chat_usage()))
    assert (await asyncio.to_thread(gateway.chat, chat_body(openai.model, stream=True))).status_code == 200


@pytest.mark.usefixtures("unhurried")
async def test_many_streams_at_once_are_all_whole(gateway: Gateway, openai: Site) -> None:
    """A hundred at the same time, each byte for byte, each booked."""
    openai.says(stream(*chat_stream()[:3], Pause(0.05), *chat_stream()[3:]))
    body = chat_body(openai.model, stream=True, stream_options={"include_usage": True})
    answers = await asyncio.gather(*(asyncio.to_thread(gateway.chat, body) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.content for answer in answers} == {b"".join(chat_stream())}
    assert await asyncio.to_thread(gateway.attempts, openai) == {"ok": 100}


def test_a_client_that_reads_slowly_slows_the_backend(gateway: Gateway, openai: Site) -> None:
    """Back-pressure: a 40 MB answer to a client that does not read is not gathered up in memory."""
    chunk = chat_chunk({"content": "x" * 100_000})
    openai.says(stream(*chat_stream()[:1], *[chunk] * 400, *chat_stream()[-3:]))
    sock = dial(gateway, "/v1/chat/completions", chat_body(openai.model, stream=True))
    receive(sock, b"200 OK")
    time.sleep(0.5)
    held_back = openai.requests[0].steps_sent
    assert held_back < 200
    got = 0
    tail = b""
    while b"[DONE]" not in tail:
        more = sock.recv(1 << 20)
        assert more
        got += len(more)
        tail = (tail + more)[-200:]
    sock.close()
    assert got > 40_000_000
    assert only_attempt(gateway, openai)["status"] == "ok"
