"""What the HTTP server itself lets in: uvicorn's protocol with bounds on a request's head, in bytes, fields and time.

Without them a client may send a head without end, or none at all, and be waited for.
"""
from __future__ import annotations

import asyncio
import ipaddress
import json
from collections import Counter
from functools import lru_cache

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.relay import BODY_BASE_S, BODY_S_PER_BYTE
from gateway.web.door import DoorProtocol

HEAD_BYTES, HEAD_FIELDS, HEAD_S = 32 * 1024, 100, 10.0


class Limits:
    """How many connections one process takes, in all and from one address; loopback, where proxies sit, is not counted."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self._most_per_address = most_per_address
        self._open: Counter[str] = Counter()

    def came(self, address: str) -> bool:
        self._open[address] += 1
        return self._open[address] <= self._most_per_address

    def left(self, address: str) -> None:
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return not address


class GuardedProtocol(DoorProtocol):
    """One client connection."""

    _head_bytes = 0
    """Of the head that is being read, as far as it has come."""
    _packet_bytes = 0
    """Of the packet that is being parsed."""
    _in_head = True
    _refused = False
    _in_body = False
    _timer: asyncio.TimerHandle | None = None
    _counted: str | None = None
    """The address under which this connection is counted."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._has_place():
            self._refused = True
            transport.abort()
            return
        self._timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _has_place(self) -> bool:
        """Counts the connection, unless there are too many already, in all or from its address."""
        limits: Limits | None = getattr(self.config.app, "limits", None)
        address = self.client[0] if self.client else ""
        if limits is None:
            return True
        if len(self.connections) > limits.most:
            return False
        if is_loopback(address):
            return True
        self._counted = address
        return limits.came(address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._counted is not None:
            self.config.app.limits.left(self._counted)  # type: ignore[union-attr]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.again(data):
            if not self._awaited_bytes:
                self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(BODY_BASE_S + self._awaited_bytes * BODY_S_PER_BYTE, self._body_too_slow)
            return
        self._packet_bytes = len(data)
        super().data_received(data)
        self._packet_bytes = 0
        if not self._in_head:
            if self._in_body and self._timer is None and not self._refused:
                self._timer = self.loop.call_later(self._body_s(), self._body_too_slow)
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, "the request's headers are too large", "headers_too_large")
        elif self._timer is None:  # half a head; waiting for its first byte is keep-alive's
            self._timer = self.loop.call_later(HEAD_S, self._too_slow)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_body = True
        came, self._in_head, self._head_bytes = self._head_bytes + self._packet_bytes, False, 0
        if len(self.headers) > HEAD_FIELDS or (came > HEAD_BYTES and self._size() > HEAD_BYTES):
            self._refuse(431, "the request's headers are too large or too many", "headers_too_large")
        elif not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_timer()
        if not self._refused:
            super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that can be read", "invalid_http")

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(408, "the request's headers did not arrive in time", "request_timeout")

    def _body_s(self) -> float:
        declared = next((value for name, value in self.headers if name == b"content-length"), b"")
        return BODY_BASE_S + int(declared or 1 << 25) * BODY_S_PER_BYTE

    def _body_too_slow(self) -> None:
        self._timer = None
        if self._turn is not None and self.cycle is self._turn:
            self._turn.too_slow()
        else:
            self._refuse(408, "the request body did not arrive in time", "request_timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answers below the application, in the OpenAI shape: who asks in which dialect is not known yet."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:  # nothing of another answer is on its way
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
