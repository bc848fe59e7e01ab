"""The client's side of one call: bytes out, and the moment it hangs up.

A call outlives its client. Each request runs as a task of its own that is not cancelled when the socket closes, so it
simply goes on; what tells it is `Client.gone` and the listener set by `on_gone`. Sending to a client that left does
nothing. `AsgiClient` speaks ASGI; `web/door.py` has the one that writes to the socket itself.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.core.errors import RequestTimeout, TooLarge

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

BODY_BASE_S, BODY_S_PER_BYTE = 30.0, 1 / 102_400
READ_ON_BYTES, READ_ON_S = 1 << 20, 2.0


class ClientGone(Exception):
    """The client left before its request was whole."""


class Client:
    """One HTTP exchange with a client; how bytes leave is the subclass's."""

    __slots__ = ("_flush", "_on_gone", "_pings", "_sent_at", "complete", "ended", "gone", "started")

    def __init__(self) -> None:
        self.gone = False
        self.started = False
        self.ended = False
        self.complete = False
        """The backend's answer came to its proper end."""
        self._sent_at = 0.0
        self._pings: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None
        """Of a ping that the client did not take at once."""
        self._on_gone: Callable[[], None] | None = None

    def arrived_s(self) -> float | None:
        """When the last bytes of the request came to this machine (monotonic), however long they waited there to be read; None:
        not known."""
        return None

    def on_gone(self, listener: Callable[[], None] | None) -> None:
        """Calls `listener` when the client leaves; None takes it off."""
        self._on_gone = listener

    async def pause(self, seconds: float) -> None:
        """Waits, but not for a client that has left."""
        left = asyncio.Event()
        self.on_gone(left.set)
        with suppress(TimeoutError):
            await asyncio.wait_for(left.wait(), seconds)
        self.on_gone(None)

    def ping(self, every_s: float, data: bytes) -> None:
        """Sends `data` whenever nothing else was sent for that long; call it when the answer has been started."""
        self._sent_at = time.monotonic()
        self._ping_in(every_s, every_s, data)

    def _ping_in(self, seconds: float, every_s: float, data: bytes) -> None:
        """A timer, not a task: nearly all streams end before it is due, and each would have paid for one."""
        self._pings = asyncio.get_running_loop().call_later(seconds, self._look_for_silence, every_s, data)

    def _look_for_silence(self, every_s: float, data: bytes) -> None:
        if self.ended or self.gone:
            return
        left_s = self._sent_at + every_s - time.monotonic()
        if left_s <= 0.0 and (self._flush is None or self._flush.done()):
            self._sent_at = time.monotonic()
            if not self.write(data):
                self._flush = asyncio.ensure_future(self.drained())
        self._ping_in(left_s if left_s > 0.0 else every_s, every_s, data)

    def _left(self) -> None:
        """The client hung up."""
        if not self.ended:
            self.gone = True
            if self._on_gone is not None:
                self._on_gone()

    def begin(self, status: int, headers: Headers) -> None:
        """An answer in pieces starts; its head goes out with the first of them."""
        raise NotImplementedError

    def write(self, data: bytes) -> bool:
        """Sends a piece. False: `drained` is to be awaited before the next."""
        raise NotImplementedError

    async def drained(self) -> None:
        """Returns when the client has taken enough of what was written."""
        raise NotImplementedError

    async def end(self, data: bytes = b"") -> None:
        """Sends the last bytes; the exchange is over."""
        raise NotImplementedError

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer at once."""
        raise NotImplementedError

    def close(self) -> None:
        """No more is done for this client."""
        if self._pings is not None:
            self._pings.cancel()
        if self._flush is not None:
            self._flush.cancel()


class AsgiClient(Client):
    """A client behind any ASGI server."""

    __slots__ = ("_receive", "_send", "_unread", "_waiting", "_watch")

    def __init__(self, receive: Receive, send: Send) -> None:
        super().__init__()
        self._receive = receive
        self._send = send
        self._unread = False
        self._waiting: list[dict[str, Any]] = []
        """Messages that are written and not sent yet."""
        self._watch: asyncio.Task[None] | None = None

    async def body(self, limit_bytes: int, declared: int | None) -> bytes:
        """The whole request body. Raises `TooLarge`, `ClientGone`, or `RequestTimeout`."""
        if declared is not None and declared > limit_bytes:
            self._unread = True
            raise TooLarge(f"the request body has {declared} bytes, the limit is {limit_bytes}")
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            data: bytes = message.get("body", b"")
            if len(data) > limit_bytes:
                raise TooLarge(f"the request body is over the limit of {limit_bytes} bytes")
            return data
        return await self._long_body(message, limit_bytes, declared)

    async def _long_body(self, message: MutableMapping[str, Any], limit_bytes: int, declared: int | None) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_BASE_S + (declared or limit_bytes) * BODY_S_PER_BYTE):
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > limit_bytes:
                        self._unread = True
                        raise TooLarge(f"the request body is over the limit of {limit_bytes} bytes")
                    if not message.get("more_body"):
                        return b"".join(chunks)
                    message = await self._receive()
        except TimeoutError as error:
            self._unread = True
            raise RequestTimeout("the request body did not arrive in time") from error

    async def _read_on(self) -> None:
        """Reads a little of what is too much: a client that is still sending gets to see the answer before we close."""
        left = READ_ON_BYTES
        try:
            async with asyncio.timeout(READ_ON_S):
                while left > 0:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
                    left -= len(message.get("body", b""))
        except TimeoutError:
            return

    def watch(self) -> None:
        """Starts to look out for the hang-up; call it when the body has been read."""
        self._watch = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def begin(self, status: int, headers: Headers) -> None:
        self.started = True
        self._waiting.append({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> bool:
        self._waiting.append({"type": "http.response.body", "body": data, "more_body": True})
        return False

    async def drained(self) -> None:
        self._sent_at = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            if not self.gone:
                await self._send(message)

    async def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        self.ended = True
        self._waiting.append({"type": "http.response.body", "body": data, "more_body": False})
        await self.drained()
        self.close()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        if self._unread:
            self.begin(status, [*headers, (b"connection", b"close")])
            self.write(body)
            await self.drained()
            await self._read_on()
            await self.end()
        else:
            self.begin(status, headers)
            await self.end(body)

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.cancel()
