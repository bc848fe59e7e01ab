"""HTTP/1.1 to model servers on asyncio and httptools, behind httpx's transport interface.

Why not httpx's own transport: its pool costs CPU with the square of its connections and leaks slots when a task is
cancelled inside it. Here nothing is ever cancelled: a caller that wants to stop passes a `Stop` in the request's
extensions and calls `stop.set()`; the socket is aborted and whoever waits gets `httpx.ReadError`.

A connection that ends before any byte of the answer is `NoAnswer`; one from the pool may just have been closed by a server
that did not want to wait, so the request is then sent once more, on a fresh one. Only `ConnectError` and `ConnectTimeout`
mean that nothing was sent. Redirects are not followed, proxies are not used, cookies are not kept.
"""
from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httptools
import httpx

_MAX_HEAD_BYTES = 64 * 1024
_HIGH_WATER_BYTES = 64 * 1024
_MAX_IDLE_PER_HOST = 256

Origin = tuple[str, str, int]


class NoAnswer(httpx.RemoteProtocolError):
    """The connection ended before any byte of the answer."""


class Stop:
    """A flag with listeners: the polite way to end an exchange from another task."""

    __slots__ = ("_on_set", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._on_set: Callable[[], None] | None = None

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            if self._on_set is not None:
                self._on_set()

    def watch(self, on_set: Callable[[], None] | None) -> None:
        """Calls `on_set` when the flag is raised; one listener at a time, None takes it off."""
        self._on_set = on_set


class _Connection(asyncio.Protocol):
    """One socket; serves one exchange at a time and is its parser's delegate."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_back: Callable[[_Connection], None]) -> None:
        self.idle_since = 0.0
        self.closed = False
        self.reused = False
        self.exchange: _Exchange | None = None
        self._loop = loop
        self._give_back = give_back
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._in_head = True

    def start(self, exchange: _Exchange, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes, self._in_head = 0, True
        if len(body) < 32_768:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # bytes that nobody asked for: this connection is out of step
            self.abort()
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES + _HIGH_WATER_BYTES * 4:
                self._break(httpx.RemoteProtocolError("the answer's headers are too large"))
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"))

    def eof_received(self) -> bool:
        self._ended(httpx.RemoteProtocolError("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._ended(httpx.ReadError(str(exc) or "the connection broke"))

    # the parser's callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is not None:
            self.exchange.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_head = False
        if self.exchange is not None:
            self.exchange.head_done(status)

    def on_body(self, data: bytes) -> None:
        if self.exchange is not None:
            self.exchange.body(data)

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if self._parser.get_status_code() < 200:  # 100 Continue, 103 Early Hints
            exchange.headers.clear()
            return
        self.exchange = None
        reusable = self._parser.should_keep_alive() and not self.closed
        exchange.done()
        if reusable:
            self.idle_since = time.monotonic()
            self._loop.call_soon(self._give_back, self)
        else:
            self.abort()

    def _ended(self, error: httpx.TransportError) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if exchange.until_close and isinstance(error, httpx.RemoteProtocolError):
            exchange.done()
        else:
            exchange.fail(error if self._head_bytes else NoAnswer(str(error)))

    def _break(self, error: httpx.TransportError) -> None:
        self._ended(error)
        self.abort()


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer; iterating gives the body as it comes, joined as far as it has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: _Connection, stop: Stop | None) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.until_close = False
        self.read_timeout_s: float | None = None
        self._loop = loop
        self._connection = connection
        self._stop = stop
        self._status: int | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._paused = False
        self._finished = False
        self._error: httpx.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        if stop is not None:
            stop.watch(self.abort)

    # called by the connection

    def head_done(self, status: int) -> None:
        self._status = status
        names = {name.lower() for name, _ in self.headers}
        self.until_close = not names & {b"content-length", b"transfer-encoding"} and status not in (204, 304)
        self._wake()

    def body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > _HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._connection.pause()
        self._wake()

    def done(self) -> None:
        self._finished = True
        if self._paused:  # the connection goes back to the pool: its socket must be read again
            self._paused = False
            self._connection.resume()
        self._unwatch()
        self._wake()

    def fail(self, error: httpx.TransportError) -> None:
        self._error = error
        self._unwatch()
        self._wake()

    # called by the reader

    def abort(self) -> None:
        """Ends the exchange from outside; whoever waits gets `httpx.ReadError`."""
        if not self._finished:
            self._connection.exchange = None
            self._connection.abort()
            self.fail(httpx.ReadError("stopped"))

    async def status(self) -> int:
        while self._status is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._status

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if self._chunks:
                return self._take()
            if self._error is not None:
                raise self._error
            if self._finished:
                raise StopAsyncIteration
            await self._wait()

    async def aclose(self) -> None:
        self.abort()

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered_bytes = 0
        if self._paused:
            self._paused = False
            self._connection.resume()
        return data

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        timer = None if self.read_timeout_s is None else self._loop.call_later(self.read_timeout_s, self._timed_out)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _timed_out(self) -> None:
        self._connection.exchange = None
        self._connection.abort()
        self.fail(httpx.ReadTimeout("no bytes in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _unwatch(self) -> None:
        if self._stop is not None:
            self._stop.watch(None)


class WireTransport(httpx.AsyncBaseTransport):
    """Pooled HTTP/1.1 connections under httpx's interface; limit concurrency above it, it has no limit of its own.

    Reads from a request's extensions: `timeout` (httpx's own: `connect`, `read`, in seconds) and `stop` (a `Stop`).
    """

    def __init__(self, verify: ssl.SSLContext | None = None, keepalive_s: float = 30.0) -> None:
        self._verify = verify
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, list[_Connection]] = {}
        self._heads: dict[tuple[bytes, str], bytes] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        timeout = request.extensions.get("timeout", {})
        stop: Stop | None = request.extensions.get("stop")
        connection = self._idle_connection(_origin(request)) or await self._connect(loop, request, timeout.get("connect"))
        try:
            return await self._exchange(loop, connection, request, timeout.get("read"), stop)
        except NoAnswer:
            if not connection.reused:
                raise
        connection = await self._connect(loop, request, timeout.get("connect"))
        return await self._exchange(loop, connection, request, timeout.get("read"), stop)

    async def _exchange(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: _Connection,
        request: httpx.Request,
        read_timeout_s: float | None,
        stop: Stop | None,
    ) -> httpx.Response:
        exchange = _Exchange(loop, connection, stop)
        exchange.read_timeout_s = read_timeout_s
        if stop is not None and stop.is_set:
            connection.abort()
            raise httpx.ConnectError("stopped before anything was sent", request=request)
        body = request.content
        connection.start(exchange, _head(request, len(body)), body)
        try:
            status = await exchange.status()
        except httpx.TransportError as error:
            error.request = request
            raise
        return httpx.Response(
            status, headers=exchange.headers, stream=exchange, request=request, extensions={"exchange": exchange}
        )

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _idle_connection(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        oldest = time.monotonic() - self._keepalive_s
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, request: httpx.Request, timeout_s: float | None
    ) -> _Connection:
        scheme, host, port = origin = _origin(request)
        idle = self._idle.setdefault(origin, [])

        def give_back(connection: _Connection) -> None:
            if connection.closed or len(idle) >= _MAX_IDLE_PER_HOST:
                connection.abort()
            else:
                idle.append(connection)

        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, give_back), host, port, ssl=self._tls() if scheme == "https" else None
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("the connection took too long", request=request) from error
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__, request=request) from error
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._verify is None:
            self._verify = ssl.create_default_context()
        return self._verify


def _origin(request: httpx.Request) -> Origin:
    url = request.url
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _head(request: httpx.Request, body_bytes: int) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    framed = False
    for name, value in request.headers.raw:
        lower = name.lower()
        if lower == b"transfer-encoding":
            continue
        framed = framed or lower == b"content-length"
        lines.append(name + b": " + value)
    if not framed and (body_bytes or request.method not in ("GET", "HEAD")):
        lines.append(b"content-length: %d" % body_bytes)
    return b"\r\n".join(lines) + b"\r\n\r\n"
