"""A scripted model server over real sockets: says what it is told to, byte by byte, and writes down what it gets.

It runs in a thread of its own, so tests may block. One server has many `Site`s, each a path prefix with its own script and
its own records, so that tests that share a gateway do not meet.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 60.0
"""How long a test waits for what must come: no busy machine reaches it, and what is broken ends by it."""


class Gate:
    """A place in a script where the upstream waits until the test opens it."""

    def __init__(self) -> None:
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def open(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await asyncio.wrap_future(self._future)


@dataclass(frozen=True)
class Pause:
    """Silence for a while."""

    seconds: float


class End:
    """How a reply may end early."""

    CUT = "cut"      # the socket is closed, whatever is left to say
    RESET = "reset"  # the same, with a TCP reset
    HANG = "hang"    # nothing more is ever said


Step = bytes | Gate | Pause | str
"""Bytes are one network write; a str is one of `End`."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. `framing`: `length`, `chunked`, `close`, or `raw`, where the steps are all there is, status line included."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    steps: Sequence[Step] = ()
    framing: str = "length"
    before: Sequence[Step] = ()
    """Steps before the status line."""

    @property
    def body(self) -> bytes:
        """What a client gets if nothing is changed on the way."""
        return b"".join(step for step in self.steps if isinstance(step, bytes))


def whole(document: Any, status: int = 200, *, before: Sequence[Step] = (), **headers: str) -> Reply:
    """A JSON answer (bytes travel as they are); header names have _ for -."""
    data = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
    named = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Reply(status=status, headers=tuple(named.items()), steps=(data,), before=before)


def packed(document: Any) -> Reply:
    """A gzip answer, though nobody asked for one."""
    data = gzip.compress(json.dumps(document).encode())
    return Reply(headers=(("content-type", "application/json"), ("content-encoding", "gzip")), steps=(data,))


def stream(*steps: Step, **headers: str) -> Reply:
    """An event stream; without `End` it ends properly."""
    named = {"content-type": "text/event-stream", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Reply(headers=tuple(named.items()), steps=steps, framing="chunked")


def raw(*steps: Step) -> Reply:
    """Bytes as they are, the status line too."""
    return Reply(steps=steps, framing="raw")


HANG = Reply(before=(End.HANG,))
RESET = Reply(before=(End.RESET,))


@dataclass
class Received:
    """One request as it came, and what became of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    raw_headers: list[tuple[str, str]]
    body: bytes
    at: float
    port: int
    """The client's port: equal ports are one connection."""
    steps_sent: int = 0
    answered: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)
    """The other side closed before the answer was over."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """One backend's place on the server."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.requests: list[Received] = []
        self._script: list[Reply] = []
        self._came = threading.Condition()

    @property
    def model(self) -> str:
        """A model that no other site serves."""
        return f"m-{self.name}"

    def says(self, *replies: Reply) -> None:
        """From now on: these, one a request; the last one again and again."""
        self._script = list(replies)

    def take(self, request: Received) -> Reply:
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        if not self._script:
            return whole({"error": {"message": "nothing scripted", "type": "server_error"}}, 500)
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> Received:
        """Blocks until that many requests have come; gives the latest."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= count, timeout_s), f"{self.name}: {len(self.requests)} requests"
            return self.requests[count - 1]


class Upstream:
    """The server; `site()` makes places on it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.sites: dict[str, Site] = {}
        self.connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="upstream")
        self._thread.start()
        self._server = self._run(self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, ssl=tls, backlog=512))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def site(self, name: str) -> Site:
        self.sites[name] = site = Site(name, f"{self.base}/{name}/v1")
        return site

    @property
    def open_connections(self) -> int:
        return len(self.connections)

    def drop_idle(self) -> None:
        """Closes every connection, as a server does that restarts."""
        self._loop.call_soon_threadsafe(lambda: [connection.transport.close() for connection in list(self.connections)])
        until(lambda: not self.connections, "connections to close")

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for connection in list(self.connections):
                connection.transport.abort()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection(asyncio.Protocol):
    """One socket: reads requests, plays replies one after the other."""

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._buffer = bytearray()
        self._playing: asyncio.Task[None] | None = None
        self._request: Received | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.connections.discard(self)
        self._can_write.set()
        if self._request is not None and not self._request.answered.is_set():
            self._request.hung_up.set()
        if self._playing is not None:
            self._playing.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._playing is None or self._playing.done():
            request = self._next_request()
            if request is None:
                return
            self._request = request
            self._playing = asyncio.ensure_future(self._play(request))

    def _next_request(self) -> Received | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        headers = dict(pairs)
        length = int(headers.get("content-length", "0"))
        if len(self._buffer) < end + 4 + length:
            return None
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        method, path, _ = first.split(" ", 2)
        port = self.transport.get_extra_info("peername")[1]
        return Received(method, path, headers, pairs, body, time.monotonic(), port)

    async def _play(self, request: Received) -> None:
        site = self._upstream.sites.get(request.path.split("/")[1])
        if site is None:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        reply = site.take(request)
        with contextlib.suppress(_Over):
            for step in reply.before:
                await self._step(request, step, framed=False)
            self._head = b"" if reply.framing == "raw" else _head(reply)
            if not (reply.steps and isinstance(reply.steps[0], bytes)):
                self._write(b"")
            for step in reply.steps:
                await self._step(request, step, framed=reply.framing == "chunked")
            request.answered.set()
            if reply.framing == "chunked":
                self.transport.write(b"0\r\n\r\n")
            if reply.framing in ("close", "raw") or ("connection", "close") in reply.headers:
                self.transport.close()
        asyncio.get_running_loop().call_soon(self.data_received, b"")

    async def _step(self, request: Received, step: Step, *, framed: bool) -> None:
        if isinstance(step, bytes):
            await self._can_write.wait()
            self._write(b"%x\r\n%s\r\n" % (len(step), step) if framed else step)
            request.steps_sent += 1
            await asyncio.sleep(0)
        elif isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Gate):
            await step.wait()
        elif step == End.HANG:
            await asyncio.get_running_loop().create_future()
        else:
            request.answered.set()
            if step == End.RESET:
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
            else:
                self.transport.close()
            raise _Over


    def _write(self, data: bytes) -> None:
        """A head goes with the first bytes behind it: however slow the machine is, no silence lies between them."""
        data, self._head = self._head + data, b""
        self.transport.write(data)


class _Over(Exception):
    """The script ended the connection."""


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in reply.headers)]
    if reply.framing == "length":
        lines.append(f"content-length: {len(reply.body)}")
    elif reply.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def until(what: Callable[[], Any], name: str, timeout_s: float = PATIENCE_S) -> Any:
    """Blocks until `what()` is true and gives its value; fails with `name` if that takes too long."""
    end = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s in vain for {name}"
        time.sleep(0.01)
    return value
