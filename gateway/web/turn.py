"""One model call on a connection, from its head to the end of its answer, without ASGI's objects; see `door.py`."""
from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from gateway.core.errors import GatewayError, Overloaded, RequestTimeout
from gateway.relay import READ_ON_BYTES, READ_ON_S, Client, ClientGone, Headers
from gateway.web import heads
from gateway.web.front import Front, dialect_of, too_large
from gateway.web.heads import Known, Visit
from gateway.web.sockets import arrived_s

if TYPE_CHECKING:
    from gateway.web.door import DoorProtocol

STUCK_S = 60.0
"""How long a client may leave what was written to it unread."""


class _Deaf:
    """What uvicorn sets when a connection ends; a `Turn` hears of that by `lost`."""

    def set(self) -> None: ...


_DEAF = _Deaf()


class Turn(Client):
    """One request on a connection, and its answer. Stands in for uvicorn's cycle as far as the protocol looks at one."""

    __slots__ = (
        "_chunks", "_front", "_head", "_size", "_visit", "_whole", "disconnected", "keep_alive", "message_event", "path",
        "protocol", "response_complete",
    )  # fmt: skip

    def __init__(self, protocol: DoorProtocol, front: Front, path: str, *, keep_alive: bool) -> None:
        super().__init__()
        self.protocol = protocol
        self.path = path
        self.keep_alive = keep_alive and not front.draining
        self.response_complete = False
        self.disconnected = False
        self.message_event = _DEAF
        self._front = front
        self._visit: Visit | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._whole = False
        self._head = b""
        """Of the answer, until it goes out with its first bytes."""

    @property
    def response_started(self) -> bool:
        return self.started

    # the request

    def head_came(self, headers: list[tuple[bytes, bytes]], *, continues: bool) -> None:
        """The head is there."""
        try:
            self._visit = self._front.enter(self.path, "POST", headers, self.protocol.peer)
        except GatewayError as error:
            self._refuse(error)
            return
        if continues:
            self.protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def head_known(self, known: Visit, body_bytes: int) -> None:
        """The same head as before is there."""
        try:
            self._visit = self._front.enter_again(known, body_bytes)
        except GatewayError as error:
            self._refuse(error)

    def known(self, packet: bytes) -> Known | None:
        """What to remember of the packet that began this turn: its head, if that was let in."""
        if self._visit is None or not packet.startswith(b"POST /"):
            return None
        return heads.known(packet, self._visit, keep_alive=self.keep_alive)

    def take(self, data: bytes) -> None:
        """A piece of the body."""
        self._size += len(data)
        if self._visit is not None:
            self._chunks.append(data)
            if self._size > self._front.max_body_bytes:
                self._chunks.clear()
                self._size = 0
                self._refuse(too_large(self._front.max_body_bytes))
        elif self._size > READ_ON_BYTES:  # closing with bytes unread would take the answer from the client
            self.protocol.flow.pause_reading()

    def whole(self) -> None:
        """The body is there: the call begins, as soon as there is a place for it."""
        self._whole = True
        if self._visit is None:  # refused already; what came after it was read so that the client sees why
            if self.response_complete:
                self.protocol.transport.close()
            return
        if self._front.may_enter():
            self.protocol.begin(self)
            return
        try:
            self._front.queue(self._visit, self._turn_came)
        except Overloaded as error:
            self._turned_away(error)

    def _turn_came(self, refusal: Overloaded | None) -> None:
        """After a wait."""
        if refusal is None:
            self.protocol.begin(self)
        else:
            self._turned_away(refusal)

    def _turned_away(self, error: Overloaded) -> None:
        self._respond(*self._front.turned_away(dialect_of(self.path), error))

    def run(self) -> Coroutine[Any, Any, None]:
        """Serves the call."""
        assert self._visit is not None
        chunks, self._chunks = self._chunks, []
        return self._front.serve(self._visit, chunks.pop() if len(chunks) == 1 else b"".join(chunks), self)

    def lost(self) -> None:
        """The connection ended."""
        if not self._whole and not self.ended:
            self.protocol.spawn(self._front.refuse(dialect_of(self.path), self, ClientGone()))
        self._left()

    def too_slow(self) -> None:
        """The body's time is up."""
        self._refuse(RequestTimeout("the request body did not arrive in time"))

    def _refuse(self, error: GatewayError) -> None:
        self._visit = None
        self.protocol.spawn(self._front.refuse(dialect_of(self.path), self, error))

    def arrived_s(self) -> float | None:
        return arrived_s(self.protocol.transport.get_extra_info("socket"))

    # the answer

    def begin(self, status: int, headers: Headers) -> None:
        self._head = self._lines(status, headers) + b"transfer-encoding: chunked\r\n\r\n"
        self.started = True

    def write(self, data: bytes) -> bool:
        if self.gone or not data:
            return True
        protocol = self.protocol
        protocol.transport.write(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        self._head = b""
        if self._pings is not None:
            self._sent_at = protocol.loop.time()
        return not protocol.flow.write_paused

    async def drained(self) -> None:
        """Waits for a slow reader, but not for ever."""
        try:
            async with asyncio.timeout(STUCK_S):
                await self.protocol.flow.drain()
        except TimeoutError:
            self.protocol.transport.abort()

    async def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        self.ended = True
        if not self.gone:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self.protocol.transport.write(self._head + last)
        self._over()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self._respond(status, headers, body)

    def _respond(self, status: int, headers: Headers, body: bytes) -> None:
        if self.ended:
            return
        if not self._whole:
            self.keep_alive = False
        head = self._lines(status, headers) + b"content-length: %d\r\n\r\n" % len(body)
        self.started = self.ended = True  # not before: where there can be no such head, the client still gets another answer
        if not self.gone:
            transport = self.protocol.transport
            if len(body) < 65_536:
                transport.write(head + body)
            else:
                transport.writelines((head, body))
        self._over()

    def _lines(self, status: int, headers: Headers) -> bytes:
        named = [*self.protocol.server_state.default_headers, *headers]
        if not self.keep_alive:
            named.append((b"connection", b"close"))
        return heads.head_lines(status, named)

    def _over(self) -> None:
        self.close()
        self.response_complete = True
        if self.gone:
            return
        if self._whole:
            self.protocol.turn_over(keep_alive=self.keep_alive)
        else:  # read on for a moment: a client that is still sending gets to see the answer
            self.protocol.loop.call_later(READ_ON_S, self.protocol.transport.close)
