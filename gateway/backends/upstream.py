"""One request to one backend over httpx's transport interface; its exceptions become ours here and nowhere else.

A provider's key goes to that provider's address only: client headers that carry credentials, addresses or our own
switches never travel, and nothing a client sends chooses where the request goes.
"""
from __future__ import annotations

import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from math import isfinite

import httpx

from gateway.backends.fleet import Target
from gateway.backends.http import Answer, Fields, NoAnswer, RawHeaders, Request, Stop, Take, Transport, header
from gateway.core.call import Call
from gateway.core.errors import UpstreamError, UpstreamTimeout

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_PIECE_BYTES, _MAX_INFLATED_RATIO = 1024 * 1024, 100
_MAX_RETRY_AFTER_S = 3600
_STAY_HERE = frozenset({
    "authorization", "x-api-key", "api-key", "cookie", "host", "forwarded", "via", "x-real-ip", "connection", "keep-alive",
    "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
    "content-encoding", "content-type", "accept-encoding", "expect", "openai-organization", "openai-project", "origin",
    "referer",
})  # fmt: skip
_STAY_HERE_PREFIXES = ("x-forwarded-", "x-tollway-", "sec-", "cf-", "x-goog-")
_COME_BACK = frozenset({
    b"content-type", b"request-id", b"x-request-id", b"retry-after", b"retry-after-ms", b"openai-processing-ms",
    b"openai-version", b"openai-model", b"server-timing", b"x-should-retry",
})  # fmt: skip
_COME_BACK_PREFIXES = (b"x-ratelimit-", b"anthropic-")
_USUAL_CONNECTION = frozenset({"keep-alive", "close"})
Inflate = Callable[[bytes], Iterator[bytes]]
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class Unreachable(UpstreamError):
    """Nothing was sent: the same request may go elsewhere."""

    code = "upstream_unreachable"


class Dropped(UpstreamError):
    """The connection ended before a byte of an answer came: taken as not served, so it may go elsewhere."""

    code = "upstream_broken"


class Broken(UpstreamError):
    """The connection broke in the middle of an answer; it has been served and may be billed."""

    code = "upstream_broken"


class Unanswered(UpstreamTimeout):
    """Sent, and no answer began in time; it may have been served and billed."""


class Stalled(UpstreamTimeout):
    """Silence in the middle of an answer."""

    code = "upstream_stalled"


class Stopped(Exception):
    """The exchange was ended from our side; `sent`: after the request had gone out."""

    def __init__(self, *, sent: bool = True) -> None:
        super().__init__()
        self.sent = sent


class Upstream:
    """Sends requests through a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, target: Target, body: bytes, headers: RawHeaders, stop: Stop, method: str = "POST") -> Answer:
        """Returns when the answer's headers are there. Raises `Unreachable`, `Dropped`, `Broken`, `Unanswered`, `Stopped`."""
        request = Request(
            method, target.address, headers, body, target.connect_timeout_s, target.first_byte_timeout_s, stop
        )
        try:
            answer = await self._transport.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.PoolTimeout) as error:
            if stop.is_set:
                raise Stopped(sent=False) from error
            raise Unreachable("the model backend cannot be reached") from error
        except NoAnswer as error:
            raise _unless(stop, Dropped("the model backend closed the connection without an answer")) from error
        except httpx.ReadTimeout as error:
            raise _unless(stop, Unanswered("the model backend did not answer in time")) from error
        except httpx.TransportError as error:
            raise _unless(stop, Broken("the model backend's answer cannot be read")) from error
        if not 200 <= answer.status <= 599:
            await answer.aclose()
            raise _unless(stop, Broken(f"the model backend answered with the status {answer.status}, which there is not"))
        answer.read_timeout_s = target.idle_timeout_s
        return answer

    async def aclose(self) -> None:
        await self._transport.aclose()


class Body:
    """An answer's body, inflated if the backend packed it all the same. Raises `UpstreamError` for an unknown packing."""

    __slots__ = ("_answer", "_inflate", "_left", "_stop")

    def __init__(self, answer: Answer, stop: Stop) -> None:
        self._answer = answer
        self._stop = stop
        self._inflate = _inflater(header(answer, b"content-encoding"))
        self._left: deque[bytes] = deque()
        """Inflated and not taken yet."""

    async def pump(self, take: Take) -> None:
        """The body to `take`, each piece in the moment in which it comes, until that gives False (then this may be called
        again) or the body ends. Raises `Broken`, `Stalled`, `Stopped`, and what `take` raises."""
        try:
            if self._inflate is None:
                await self._answer.pump(take)
            elif self._hand_on(take):
                await self._answer.pump(partial(self._unpack, self._inflate, take))
        except httpx.ReadTimeout as error:
            raise _unless(self._stop, Stalled("the model backend fell silent in the middle of its answer")) from error
        except httpx.TransportError as error:
            raise _unless(self._stop, Broken("the model backend broke off in the middle of its answer")) from error
        except zlib.error as error:
            raise UpstreamError("the model backend's answer cannot be unpacked") from error

    def _unpack(self, inflate: Inflate, take: Take, chunk: bytes) -> bool:
        self._left.extend(inflate(chunk))
        return self._hand_on(take)

    def _hand_on(self, take: Take) -> bool:
        while self._left:
            if not take(self._left.popleft()):
                return False
        return True


def there(answer: Answer) -> bytes | None:
    """The whole body, where it has come already, plain and within bounds; else None, and it is to be `read`."""
    for name, _ in answer.headers:
        if name == b"content-encoding":
            return None
    found = answer.whole()
    return found if found is None or len(found) <= MAX_ANSWER_BYTES else None


async def read(answer: Answer, stop: Stop) -> bytes:
    """The whole body, bounded."""
    parts: list[bytes] = []
    size = 0

    def take(chunk: bytes) -> bool:
        nonlocal size
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise UpstreamError("the model backend's answer is too large")
        parts.append(chunk)
        return True

    await Body(answer, stop).pump(take)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unlocked(body: bytes, target: Target) -> bytes:
    """An error's body without the backend's own key, which some servers repeat in full when they do not like it."""
    return body if target.secret is None else body.replace(target.secret.reveal().encode(), b"***")


def going_on(target: Target, call: Call) -> Fields:
    """`outgoing` of a call, worked out once for each target and head."""
    known: tuple[Target, Fields] | None = call.sent.get(target.key)
    if known is None or known[0] is not target:
        headers = outgoing(target, call.headers, same_dialect=call.dialect == target.dialect)
        fields = Fields.of(headers, target.address)
        known = call.sent[target.key] = target, fields
    return known[1]


def outgoing(target: Target, client_headers: Mapping[str, str], *, same_dialect: bool) -> list[tuple[bytes, bytes]]:
    """Headers of the request to the backend: the client's own where the dialect is the same, never its credentials."""
    headers = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
    if same_dialect:
        named = client_headers.get("connection", "").lower()
        hop_by_hop = {name.strip() for name in named.split(",")} if named and named not in _USUAL_CONNECTION else ()
        for name, value in client_headers.items():
            wire = _travelling(name)
            if wire is not None and name not in hop_by_hop:
                headers.append((wire, value.encode("latin-1")))
    if target.dialect.startswith("anthropic") and not (same_dialect and "anthropic-version" in client_headers):
        headers.append((b"anthropic-version", b"2023-06-01"))
    return [*headers, *target.headers]


@lru_cache(maxsize=1024)
def _travelling(name: str) -> bytes | None:
    """A client's header name as it goes to the backend; None: it stays here."""
    return None if name in _STAY_HERE or name.startswith(_STAY_HERE_PREFIXES) else name.encode("latin-1")


def incoming(answer: Answer) -> list[tuple[bytes, bytes]]:
    """Headers of the answer that may go back: a list of known ones, nothing with control bytes in it, no wait over an hour."""
    return [
        (name, _bounded_wait(answer, value) if name == b"retry-after" else value)
        for name, value in answer.headers
        if _returning(name) and not _CONTROL.search(value)
    ]


@lru_cache(maxsize=1024)
def _returning(name: bytes) -> bool:
    return name in _COME_BACK or name.startswith(_COME_BACK_PREFIXES)


def retry_after_s(answer: Answer) -> float | None:
    """What the backend says about when to come back: milliseconds, seconds or a date."""
    for name, unit_s in ((b"retry-after-ms", 1e-3), (b"retry-after", 1.0)):
        with suppress(ValueError):
            wait_s = float(header(answer, name)) * unit_s
            return max(wait_s, 0.0) if isfinite(wait_s) else None
    with suppress(ValueError):
        return max(parsedate_to_datetime(header(answer, b"retry-after")).timestamp() - time.time(), 0.0)
    return None


def _bounded_wait(answer: Answer, value: bytes) -> bytes:
    wait_s = retry_after_s(answer)
    plain = value.isascii() and value.isdigit() and wait_s is not None and wait_s <= _MAX_RETRY_AFTER_S
    return value if plain else b"%d" % min(max(round(wait_s or 1), 1), _MAX_RETRY_AFTER_S)


def _unless(stop: Stop, error: UpstreamError | UpstreamTimeout) -> Exception:
    return Stopped() if stop.is_set else error


def _inflater(encoding: str) -> Inflate | None:
    """Unpacks piece by piece, under the bound and `_MAX_INFLATED_RATIO`."""
    if encoding in ("identity", ""):
        return None
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UpstreamError("the model backend packed its answer in a way that was not asked for")
    unpacker = zlib.decompressobj(wbits=47)
    packed_bytes = got = 0

    def inflate(chunk: bytes) -> Iterator[bytes]:
        nonlocal packed_bytes, got
        packed_bytes += len(chunk)
        while chunk:
            piece = unpacker.decompress(chunk, _PIECE_BYTES)
            chunk = unpacker.unconsumed_tail
            got += len(piece)
            if got > min(MAX_ANSWER_BYTES, max(packed_bytes * _MAX_INFLATED_RATIO, _PIECE_BYTES)):
                raise UpstreamError("the model backend's answer is too large once unpacked")
            yield piece

    return inflate
