"""What goes to a model server and what comes back: the seam that tests and odd deployments swap.

`Transport` is all that the program knows of HTTP clients. `wire.py` has ours; `HttpxTransport` puts any of httpx's own behind
it (proxies, HTTP/2, `httpx.MockTransport`). Errors are httpx's: only `ConnectError` and `ConnectTimeout` mean that nothing
was sent. Why not httpx's `Request` and `Response`: making and reading them was among the dearest steps of a call.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx
import msgspec

RawHeaders = Sequence[tuple[bytes, bytes]]
Origin = tuple[str, str, int]
"""Scheme, host, port."""
Take = Callable[[bytes], bool]
"""Gets a piece of a body at once; False: no more for the moment."""


class NoAnswer(httpx.RemoteProtocolError):
    """The connection ended before any byte of the answer."""


class Stop:
    """A flag with one listener: the polite way to end an exchange from another task."""

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
        """Calls `on_set` when the flag is raised; None takes the listener off."""
        self._on_set = on_set


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart once, not for every call."""

    url: str
    origin: Origin
    host: bytes
    """Value of the Host header."""
    path: bytes
    """Path and query as they stand in the request line."""

    @staticmethod
    def of(text: str) -> Address:
        """Raises `httpx.InvalidURL`."""
        url = httpx.URL(text)
        port = url.port or (443 if url.scheme == "https" else 80)
        return Address(text, (url.scheme, url.host, port), url.netloc, url.raw_path)


class Fields(tuple[tuple[bytes, bytes], ...]):
    """Header fields that are posted to one address again and again; `start` has them as they stand on the wire."""

    start: bytes

    @staticmethod
    def of(pairs: RawHeaders, address: Address) -> Fields:
        made = Fields(pairs)
        made.start = start(POST, address, pairs)
        return made


POST = "POST"


def start(method: str, address: Address, pairs: RawHeaders) -> bytes:
    """A request as it stands on the wire, but for its framing and what follows that."""
    fields = b"".join([b"%b: %b\r\n" % pair for pair in pairs])
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method.encode("ascii"), address.path, address.host, fields)


class Request(msgspec.Struct):
    """Header names lower case; neither host nor framing headers among them."""

    method: str
    address: Address
    headers: RawHeaders
    body: bytes
    connect_timeout_s: float | None
    read_timeout_s: float | None
    """Longest wait for the next bytes, headers included; the answer has its own for its body."""
    stop: Stop


class Answer(Protocol):
    """An answer whose headers are there and whose body comes by `pump`; header names are lower case."""

    read_timeout_s: float | None
    """Longest silence between two chunks; may be set at any time."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> RawHeaders: ...

    @property
    def finished(self) -> bool:
        """Whether nothing is left to close."""
        ...

    async def pump(self, take: Take) -> None:
        """The body to `take`, piece by piece in the moment in which it comes, until that gives False or the body ends."""
        ...

    def whole(self) -> bytes | None:
        """The body, where all of it is there already and nothing of it was taken; None where it is to be pumped."""
        ...

    async def aclose(self) -> None:
        """Drops the connection, unless the body was read to its end."""


def header(answer: Answer, name: bytes) -> str:
    """The first value of that name; empty where there is none."""
    for known, value in answer.headers:
        if known == name:
            return value.decode("latin-1")
    return ""


class Transport(Protocol):
    """An HTTP client."""

    async def send(self, request: Request) -> Answer:
        """Returns when the answer's headers are there. Raises `httpx.TransportError`."""
        ...

    async def aclose(self) -> None: ...


class HttpxTransport:
    """Any transport of httpx's own as ours. It cannot be stopped while it waits for headers, only afterwards."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def send(self, request: Request) -> Answer:
        answer = await self._transport.handle_async_request(
            httpx.Request(
                request.method,
                request.address.url,
                headers=request.headers,
                content=request.body,
                extensions={"timeout": {"connect": request.connect_timeout_s, "read": request.read_timeout_s}},
            )
        )
        return _HttpxAnswer(answer, request.stop)

    async def aclose(self) -> None:
        await self._transport.aclose()


class _HttpxAnswer:
    def __init__(self, answer: httpx.Response, stop: Stop) -> None:
        self.status = answer.status_code
        self.headers: RawHeaders = [(name.lower(), value) for name, value in answer.headers.raw]
        self.read_timeout_s: float | None = None
        self.finished = False
        self._answer = answer
        self._stop = stop
        self._body = answer.aiter_raw()

    async def pump(self, take: Take) -> None:
        async for chunk in self._body:
            if self._stop.is_set:
                raise httpx.ReadError("stopped")
            if not take(chunk):
                return

    def whole(self) -> bytes | None:
        return None

    async def aclose(self) -> None:
        await self._answer.aclose()
