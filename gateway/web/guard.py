"""What the HTTP server itself lets in: uvicorn's protocol with bounds on a request's head, in bytes, fields and time.

Without them a client may send a head without end, or none at all, and be waited for.
"""
from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.relay import BODY_BASE_S, BODY_S_PER_BYTE
from gateway.web.door import DoorProtocol
from gateway.web.heads import KEY_HEADERS

HEAD_BYTES, HEAD_FIELDS, HEAD_S = 32 * 1024, 100, 10.0
BETWEEN_BYTES = 64 * 1024
"""Of chunk extensions and trailers, without any byte of a body between them."""
_CREDENTIALS = frozenset({b"authorization", *(name.encode() for name in KEY_HEADERS)})
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]+|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?")


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


def oddity(headers: Iterable[tuple[bytes, bytes]], version: str) -> str | None:
    """What two readers of a head may understand differently, and an HTTP parser lets through; None where there is nothing."""
    hosts, codings = list[bytes](), list[bytes]()
    shown: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name in _CREDENTIALS and shown.setdefault(name, value) != value:
            return "a request shows one key in a header, not two"
    if version not in ("1.1", "1.0"):
        return "of HTTP only 1.1 and 1.0 are read here"
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return "a request names one host, in one Host header"
    if hosts and _HOST.fullmatch(hosts[0].strip()) is None:
        return "the Host header is not the name of a host"
    if codings and (len(codings) > 1 or codings[0].strip().lower() != b"chunked"):
        return "of transfer encodings only chunked is read here"
    return None


class GuardedProtocol(DoorProtocol):
    """One client connection."""

    _head_bytes = 0
    """Of the head that is being read, as far as it has come."""
    _packet = b""
    """The one that is being parsed."""
    _stays_plain = False
    """This request wishes for another protocol, which it does not get."""
    _in_head = True
    _refused = False
    _in_body = False
    _between_bytes = 0
    """In packets without a byte of the body; below 0: the packet that is being parsed has some."""
    _timer: asyncio.TimerHandle | None = None
    _counted: str | None = None
    """The address under which this connection is counted."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refused, self._awaited_bytes = False, 0  # what each packet asks for is found at once in the object itself
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
                if self._timer is not None:
                    self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(BODY_BASE_S + self._awaited_bytes * BODY_S_PER_BYTE, self._body_too_slow)
            return
        self._packet = data
        super().data_received(data)
        self._packet = b""
        if not self._in_head:
            if self._in_body and not self._refused:
                self._body_goes_on(len(data))
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, "the request's headers are too large", "headers_too_large")
        elif self._timer is None:  # half a head; waiting for its first byte is keep-alive's
            self._timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _body_goes_on(self, came: int) -> None:
        self._between_bytes = 0 if self._between_bytes < 0 else self._between_bytes + came
        if self._between_bytes > BETWEEN_BYTES:
            self._refuse(431, "the request's chunk extensions or trailers are too large", "headers_too_large")
        elif self._timer is None:
            self._timer = self.loop.call_later(self._body_s(), self._body_too_slow)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are no headers: nobody in front of us has looked at them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_body = True
        came, self._in_head, self._head_bytes = self._head_bytes + len(self._packet), False, 0
        if len(self.headers) > HEAD_FIELDS or (came > HEAD_BYTES and self._size() > HEAD_BYTES):
            self._refuse(431, "the request's headers are too large or too many", "headers_too_large")
        elif (odd := oddity(self.headers, self.parser.get_http_version())) is not None:
            self._refuse(400, odd, "invalid_http")
        elif self.parser.should_upgrade() and not self._refused:
            self._wants_upgrade()
        elif not self._refused:
            super().on_headers_complete()

    def _wants_upgrade(self) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(405, "the gateway is no proxy", "method_not_allowed")
        elif not self._should_upgrade():
            self._stays_plain = True
        elif method != b"GET":
            self._refuse(426, "the gateway speaks plain HTTP, not WebSocket", "upgrade_refused")
        else:
            super().on_headers_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """HTTP/2 is wished for, as by Java's client on each connection: a server may go on in HTTP/1.1, but the parser stops at
        the head. So it reads the request once more, without that wish."""
        if self._refused:
            return
        stopped, packet, version = sys.exc_info()[1], self._packet, self.parser.get_http_version().encode()
        lines = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] not in (b"connection", b"upgrade", b"http2-settings")]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))
        self._stays_plain, self._rests = False, True
        self.parser = httptools.HttpRequestParser(self)
        assert isinstance(stopped, httptools.HttpParserUpgrade)
        self.data_received(head + packet[stopped.args[0] :])

    def handle_websocket_upgrade(self) -> None:
        if not self._refused:
            super().handle_websocket_upgrade()

    def on_body(self, body: bytes) -> None:
        self._between_bytes = -1
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_timer()
        if not self._refused and not self._stays_plain:
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
