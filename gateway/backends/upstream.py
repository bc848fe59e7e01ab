"""One request to one backend over httpx's transport interface; its exceptions become ours here and nowhere else.

A provider's key goes to that provider's address only: client headers that carry credentials, addresses or our own
switches never travel, and nothing a client sends chooses where the request goes.
"""
from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Mapping

import httpx

from gateway.backends.fleet import Target
from gateway.backends.wire import NoAnswer, Stop
from gateway.core.errors import UpstreamError, UpstreamTimeout

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_STAY_HERE = frozenset({
    "authorization", "x-api-key", "api-key", "cookie", "host", "forwarded", "via", "x-real-ip", "connection", "keep-alive",
    "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
    "content-encoding", "content-type", "accept-encoding", "expect", "openai-organization", "openai-project", "origin",
    "referer",
})  # fmt: skip
_STAY_HERE_PREFIXES = ("x-forwarded-", "x-tollway-", "sec-", "cf-", "x-goog-")
_COME_BACK = frozenset({
    "content-type", "request-id", "x-request-id", "retry-after", "retry-after-ms", "openai-processing-ms", "openai-version",
    "openai-model", "server-timing", "x-should-retry",
})  # fmt: skip
_COME_BACK_PREFIXES = ("x-ratelimit-", "anthropic-")


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
    """Sends requests through a transport; tests give it `httpx.MockTransport`."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def send(
        self, target: Target, body: bytes, headers: Iterable[tuple[str, str]], stop: Stop, method: str = "POST"
    ) -> httpx.Response:
        """Returns when the answer's headers are there. Raises `Unreachable`, `Dropped`, `Broken`, `Unanswered`, `Stopped`."""
        request = httpx.Request(
            method,
            target.url,
            headers=[("host", target.url.netloc.decode("ascii")), *headers],
            content=body,
            extensions={
                "timeout": {"connect": target.connect_timeout_s, "read": target.first_byte_timeout_s},
                "stop": stop,
            },
        )
        try:
            response = await self._transport.handle_async_request(request)
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
        exchange = response.extensions.get("exchange")
        if exchange is not None:
            exchange.read_timeout_s = target.idle_timeout_s
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


async def chunks(response: httpx.Response, stop: Stop) -> AsyncIterator[bytes]:
    """The answer's body as it comes, inflated if the backend packed it all the same. Raises `Broken`, `Stalled`, `Stopped`."""
    inflate = _inflater(response.headers.get("content-encoding", "identity"))
    got = 0
    try:
        async for chunk in response.stream:  # type: ignore[union-attr]
            if inflate is not None:
                chunk = inflate.decompress(chunk, MAX_ANSWER_BYTES - got + 1)
                got += len(chunk)
                if got > MAX_ANSWER_BYTES:
                    raise UpstreamError("the model backend's answer is too large")
            yield chunk
    except httpx.ReadTimeout as error:
        raise _unless(stop, Stalled("the model backend fell silent in the middle of its answer")) from error
    except httpx.TransportError as error:
        raise _unless(stop, Broken("the model backend broke off in the middle of its answer")) from error
    except zlib.error as error:
        raise UpstreamError("the model backend's answer cannot be unpacked") from error


async def read(response: httpx.Response, stop: Stop) -> bytes:
    """The whole body, bounded."""
    parts, size = [], 0
    async for chunk in chunks(response, stop):
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise UpstreamError("the model backend's answer is too large")
        parts.append(chunk)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def outgoing(target: Target, client_headers: Mapping[str, str], *, same_dialect: bool) -> list[tuple[str, str]]:
    """Headers of the request to the backend: the client's own where the dialect is the same, never its credentials."""
    named = {name.strip() for name in client_headers.get("connection", "").lower().split(",")}
    headers = [("content-type", "application/json"), ("accept-encoding", "identity")]
    if same_dialect:
        headers += [
            (name, value)
            for name, value in client_headers.items()
            if name not in _STAY_HERE and name not in named and not name.startswith(_STAY_HERE_PREFIXES)
        ]
    if target.dialect.startswith("anthropic") and not (same_dialect and "anthropic-version" in client_headers):
        headers.append(("anthropic-version", "2023-06-01"))
    return [*headers, *target.headers]


def incoming(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Headers of the answer that may go back: a list of known ones, nothing with control bytes in it."""
    kept = []
    for raw_name, value in response.headers.raw:
        raw_name = raw_name.lower()
        name = raw_name.decode("latin-1")
        if (name in _COME_BACK or name.startswith(_COME_BACK_PREFIXES)) and not any(c < 32 or c == 127 for c in value):
            kept.append((raw_name, value))
    return kept


def retry_after_s(response: httpx.Response) -> float | None:
    """What the backend says about when to come back; dates are left aside."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(float(response.headers[name]) * unit_s, 0.0)
        except (KeyError, ValueError):
            continue
    return None


def _unless(stop: Stop, error: UpstreamError | UpstreamTimeout) -> Exception:
    return Stopped() if stop.is_set else error


def _inflater(encoding: str) -> zlib._Decompress | None:
    if encoding in ("identity", ""):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47)
    raise UpstreamError("the model backend packed its answer in a way that was not asked for")
