"""One socket to a model server, and the exchange that it serves: bytes in, an answer out.

Nothing here is ever cancelled from outside. `Stop.set()` aborts the socket, and whoever waits for the answer gets
`httpx.ReadError`. Reading pauses while the reader is behind, so a slow client slows its backend down.
"""
from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import httptools
import httpx

from gateway.backends.http import NoAnswer, Request, Take

_MAX_HEAD_BYTES = 64 * 1024
_HIGH_WATER_BYTES = 64 * 1024
LAST_LOOK_S = 0.05
"""What came while this process was busy waits in the socket: it is read before a wait is said to have taken too long."""
_FRAMING = (b"content-length", b"transfer-encoding")


class Connection(asyncio.Protocol):
    """One socket; serves one exchange at a time and is its parser's delegate. Pieces of a body that came together are handed on
    together: the parser appends them to a list, without a step in Python."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give_back: Callable[[Connection], None]) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.closed = False
        self.exchange: Exchange | None = None
        self._give_back = give_back
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._in_head = True
        self._reusable = False
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at_s = 0.0

    def start(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self.exchange = exchange
        self._head_bytes, self._in_head = 0, True
        if len(body) < 32_768:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def look_by(self, at_s: float) -> None:
        """Looks at the clock no later than that (loop time): one timer for all waits on this connection, which may go off early
        and is then set again."""
        if self._timer is not None:
            if self._looks_at_s <= at_s:
                return
            self._timer.cancel()
        self._looks_at_s = at_s
        self._timer = self.loop.call_at(at_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._timer = None
        if self.exchange is not None:
            self.exchange.look_at_clock()

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
            self._hand_on()
            self._break(httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"))
        if self._pieces:
            self._hand_on()
        if self._reusable:  # before the answer's reader goes on, and after all that stands behind the answer was seen
            self._reusable = False
            self.idle_since = time.monotonic()
            self._give_back(self)

    def eof_received(self) -> bool:
        self._ended(httpx.RemoteProtocolError("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._ended(httpx.ReadError(str(exc) or "the connection broke"))

    # the parser's callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is not None:
            self.exchange.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_head = False
        if self.exchange is not None:
            self.exchange.head_done(status)

    def on_message_complete(self) -> None:
        if self._pieces:
            self._hand_on()
        exchange = self.exchange
        if exchange is None:
            return
        if self._parser.get_status_code() < 200:  # 100 Continue, 103 Early Hints
            exchange.headers.clear()
            return
        self.exchange = None
        self._reusable = self._parser.should_keep_alive() and not self.closed
        exchange.done()
        if not self._reusable:
            self.abort()

    def _hand_on(self) -> None:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if data and self.exchange is not None:
            self.exchange.body(data)

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


class Exchange:
    """One request and its answer; `pump` hands each piece of its body on in the moment in which it comes."""

    __slots__ = (
        "_buffered_bytes", "_chunks", "_connection", "_error", "_last_look", "_loop", "_paused", "_quiet_since_s",
        "_stop", "_take", "_thrown", "_waiter", "finished", "headers", "read_timeout_s", "status", "until_close",
    )  # fmt: skip

    def __init__(self, connection: Connection, request: Request) -> None:
        self.status = 0
        """0 until the headers are there."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.until_close = False
        self.read_timeout_s = request.read_timeout_s
        """May be set at any time; what waits then keeps the one before."""
        self._quiet_since_s = 0.0
        self._last_look = False
        self._take: Take | None = None
        self._thrown: Exception | None = None
        """What `take` raised."""
        self._loop = connection.loop
        self._connection = connection
        self._stop = request.stop
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._paused = False
        self.finished = False
        """The answer has come whole."""
        self._error: httpx.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        request.stop.watch(self.abort)

    # called by the connection

    def head_done(self, status: int) -> None:
        self.status = status
        self.until_close = status not in (204, 304)
        for name, _ in self.headers:
            if name in _FRAMING:
                self.until_close = False
                break
        self._wake()

    def body(self, data: bytes) -> None:
        take = self._take
        if take is not None:
            self._quiet_since_s = self._loop.time()
            try:
                if take(data):
                    return
            except Exception as error:  # the reader's, not the connection's
                self._thrown = error
            self._take = None
            self._wake()
            return
        self._chunks.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > _HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._connection.pause()
        self._wake()

    def done(self) -> None:
        self.finished = True
        if self._paused:  # the connection goes back to the pool: its socket must be read again
            self._paused = False
            self._connection.resume()
        self._stop.watch(None)
        self._wake()

    def fail(self, error: httpx.TransportError) -> None:
        self._error = error
        self._stop.watch(None)
        self._wake()

    # called by the reader

    def abort(self) -> None:
        """Ends the exchange from outside; whoever waits gets `httpx.ReadError`."""
        if not self.finished:
            self._connection.exchange = None
            self._connection.abort()
            self.fail(httpx.ReadError("stopped"))

    def next(self) -> asyncio.Future[None]:
        """To be awaited until `status` is there. Raises transport errors."""
        if self._error is not None:
            raise self._error
        return self._next()

    async def pump(self, take: Take) -> None:
        """Calls `take` with each piece until it gives False or the body ends. Raises what that raises, and transport errors."""
        while self._chunks:
            if not take(self._joined()):
                return
        if self._error is None and not self.finished:
            self._take = take
            try:
                await self._next()
            finally:
                self._take = None
        if self._thrown is not None:
            thrown, self._thrown = self._thrown, None
            raise thrown
        if self._error is not None:
            raise self._error

    def whole(self) -> bytes | None:
        """The body, where all of it is there already and nothing of it was taken."""
        return self._joined() if self.finished and self._chunks and self._error is None else None

    async def aclose(self) -> None:
        self.abort()

    def _joined(self) -> bytes:
        chunks = self._chunks
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered_bytes = 0
        if self._paused:
            self._paused = False
            self._connection.resume()
        return data

    def _next(self) -> asyncio.Future[None]:
        """Done when something comes; whoever waits for it hears of too long a silence as an error."""
        loop = self._loop
        waiter = self._waiter = loop.create_future()
        self._quiet_since_s = now_s = loop.time()
        if self.read_timeout_s is not None:
            self._connection.look_by(now_s + self.read_timeout_s)
        return waiter

    def look_at_clock(self) -> None:
        """Ends a wait that has lasted too long."""
        if self._waiter is None or self._waiter.done() or self.read_timeout_s is None:
            self._last_look = False
            return
        now_s = self._loop.time()
        left_s = self._quiet_since_s + self.read_timeout_s - now_s
        if left_s > 0:
            self._last_look = False
        elif not self._last_look:
            left_s, self._last_look = LAST_LOOK_S, True
        if left_s > 0:
            self._connection.look_by(now_s + left_s)
            return
        self._connection.exchange = None
        self._connection.abort()
        self.fail(httpx.ReadTimeout("no bytes in time"))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
