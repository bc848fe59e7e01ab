"""The front for model calls, without a framework, since nothing here may cost more than it must.

Reads what the headers say, finds out who asks (`enter`), takes the body, hands a `Call` on and renders its errors in the
caller's dialect (`serve`). Our own server (`door.py`) comes in by these two; any other by ASGI. Calls in a dialect go to
the pipeline; token counts, stored answers, files and configured paths have servers of their own. All other paths are
Litestar's (`routes.py`).
"""
from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any
from urllib.parse import parse_qsl, urlencode

import zstandard
from msgspec.structs import replace

from gateway import deadlines, dialects
from gateway.access.keys import KeyRing
from gateway.access.origins import Origin
from gateway.admission import Admission, Go, overloaded
from gateway.core import clock
from gateway.core.call import LONG_BYTES, PASSED_ON, Call, Sketch, Tenant
from gateway.core.errors import (
    BadRequest,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
    UpgradeRefused,
)
from gateway.core.ids import new_id
from gateway.metrics import Metrics
from gateway.relay import AsgiClient, Client, ClientGone, Receive, Send
from gateway.web import heads
from gateway.web.heads import Head, Known, Visit, head_lines

Serve = Callable[[Call, Client], Awaitable[None]]
Pass = Callable[[Call, str, str, Client], Awaitable[None]]
"""(call, method, path and query as they came, client)."""
DIALECT_OF_PATH = {module.PATH: name for name, module in dialects.DIALECTS.items()}
COUNTED = "/v1/messages/count_tokens"
_STORES = ("/v1/responses", "/v1/files", "/v1/batches")
_DOTS = frozenset({".", ".."})
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MAX_INFLATED_RATIO = 100
_ZSTD_WINDOW_BYTES = 8 << 20
_log = logging.getLogger("tollway.front")


@dataclass(frozen=True, slots=True)
class Servers:
    """Who answers calls in a dialect, token counts, and what is only passed on."""

    call: Serve
    count: Serve
    pass_on: Pass
    admission: Admission
    """How many calls in a dialect, and token counts, are served at once."""
    patient: Callable[[Tenant, Mapping[str, str]], bool]
    """Whether nobody waits for a call."""


def dialect_of(path: str) -> str:
    """In whose shape errors are told at a path."""
    return DIALECT_OF_PATH.get(path) or ("anthropic_messages" if path == COUNTED else "openai_chat")


def takes(path: str, passthrough: Iterable[str]) -> bool:
    """Whether this door serves a path."""
    if path in DIALECT_OF_PATH or path == COUNTED:
        return True
    return any(path == each or path.startswith(each + "/") for each in (*_STORES, *passthrough))


class Front:
    """One ASGI application per process for the paths that it `takes`."""

    def __init__(self, servers: Servers, keys: KeyRing, metrics: Metrics, max_body_bytes: int) -> None:
        self._servers = servers
        self._keys = keys
        self._metrics = metrics
        self.max_body_bytes = max_body_bytes
        self.draining = False
        self._heads = heads.Heads()
        self._shed: dict[str, tuple[Sequence[tuple[bytes, bytes]], bytes]] = {}
        self.may_enter: Callable[[], bool] = servers.admission.may_enter
        """Whether a call may begin at once; it has its place then, which `serve` gives back."""

    def enter(self, path: str, method: str, raw_headers: Iterable[tuple[bytes, bytes]], peer: str) -> Visit:
        """Reads a head, before any of the body is; `peer` is the address at the other end. Raises `GatewayError`."""
        head = heads.read(raw_headers)
        headers = head.headers
        if headers.get("upgrade", "").lower() == "websocket":
            raise UpgradeRefused(f"{path} speaks plain HTTP, not WebSocket")
        if method != "POST":
            raise MethodNotAllowed.of(f"{path} takes POST", "POST")
        length = headers.get("content-length", "")
        origin = Origin(peer, head.forwarded)
        visit = self._entered(dialect_of(path), path, head, origin, _whole(length))
        self._keys.origins.seen(peer, headers)
        kind = headers.get("content-type", "application/json")
        if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
            raise UnsupportedMedia("send the request as application/json")
        if visit.body_bytes is not None and visit.body_bytes > self.max_body_bytes:
            raise too_large(self.max_body_bytes)
        return visit

    def enter_again(self, known: Visit, body_bytes: int) -> Visit:
        """The same for a head that has been let in before; its body is not too long. Raises `GatewayError`."""
        return self._entered(known.dialect, known.path, known.head, known.origin, body_bytes)

    def keep(self, known: Known) -> None:
        """A head that was let in, for all connections."""
        self._heads.keep(known)

    def known(self, packet: bytes, peer: str) -> Known | None:
        """The head with which a packet begins, if it came lately on any connection, as if it had come from this peer."""
        known = self._heads.find(packet)
        if known is None or known.visit.origin.peer == peer:
            return known
        visit = known.visit
        self._keys.origins.seen(peer, visit.head.headers)
        return replace(known, visit=replace(visit, origin=Origin(peer, visit.head.forwarded)))

    def shed(self, visit: Visit, named: Sequence[tuple[bytes, bytes]]) -> bytes | None:
        """The whole answer to a call for which there is no time, with these headers; None where it has to be looked at."""
        admission = self._servers.admission
        if not (admission.sheds and admission.refuses(visit.tenant.team, patient=self._patient(visit))):
            return None
        self._metrics.refused(Overloaded.code)
        kept = self._shed.get(visit.dialect)
        if kept is None or kept[0] is not named:  # they change with the time of day
            error = overloaded()
            status, headers, body = _turned_away(visit.dialect, str(error), error.retry_after_s)
            head = head_lines(status, [*named, *headers, (b"content-length", b"%d" % len(body))])
            kept = self._shed[visit.dialect] = named, head + b"\r\n" + body
        return kept[1]

    def _patient(self, visit: Visit) -> bool:
        return self._servers.patient(visit.tenant, visit.head.headers)

    def _entered(self, dialect: str, path: str, head: Head, origin: Origin, body_bytes: int | None) -> Visit:
        at_us = clock.now_us()
        tenant = self._keys.tenant(head.key, at_us, origin, head.mark)
        return Visit(dialect, path, head, origin, tenant, at_us, time.monotonic(), body_bytes)

    def queue(self, visit: Visit, go: Go) -> None:
        """For a call that may not: see `Admission.queue`. Raises `Overloaded`."""
        allowed_s = deadlines.allowed_s(visit.head.headers, None, None)
        most_s = None if allowed_s is None else visit.came_s + allowed_s - time.monotonic()
        self._servers.admission.queue(visit.tenant.team, go, patient=self._patient(visit), most_s=most_s)

    async def serve(self, visit: Visit, body: bytes, client: Client) -> None:
        """Answers a call that has its place through `client`, whatever happens."""
        try:
            if client.gone:
                raise ClientGone
            headers = visit.head.headers
            if "content-encoding" in headers:
                body = inflate(body, headers["content-encoding"].strip().lower(), self.max_body_bytes)
            if not body:
                raise _absent()
            if len(body) > LONG_BYTES:
                sketch = await asyncio.to_thread(dialects.read, visit.dialect, body, visit.tenant.team)
            else:
                sketch = dialects.read(visit.dialect, body, visit.tenant.team)
            serve = self._servers.count if visit.path == COUNTED else self._servers.call
            await serve(_call(visit, body, sketch), client)
        except Exception as error:
            await self.refuse(visit.dialect, client, error)
        finally:
            client.close()
            self._servers.admission.leave()

    def turned_away(self, dialect: str, error: Overloaded) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """What a call is told for which there is no time: status, headers, body."""
        self._metrics.refused(error.code)
        return _turned_away(dialect, str(error), error.retry_after_s)

    async def refuse(self, dialect: str, client: Client, error: Exception) -> None:
        """Tells the caller what went wrong, as far as it can still be told."""
        if isinstance(error, ClientGone):
            self._metrics.refused("client_gone")
            return
        if not isinstance(error, GatewayError):
            _log.error("a call failed inside the gateway", exc_info=error)
            error = GatewayError("the gateway failed on this call; its log says why")
        self._metrics.refused(error.code)
        if client.ended:
            return
        if client.started:
            await client.end()
            return
        await client.respond(error.status, error_headers(error), dialects.render_error(dialect, error))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"]
        client = AsgiClient(receive, send)
        try:
            if path in DIALECT_OF_PATH or path == COUNTED:
                visit = self.enter(path, scope["method"], scope["headers"], _peer(scope))
                body = await client.body(self.max_body_bytes, visit.body_bytes)
                client.watch()
                if not self.may_enter():
                    await self._servers.admission.wait(visit.tenant.team, patient=self._patient(visit))
                await self.serve(visit, body, client)
            else:
                await self._pass_on(scope, client)
        except Exception as error:
            await self.refuse(dialect_of(path), client, error)
        finally:
            client.close()

    async def _pass_on(self, scope: MutableMapping[str, Any], client: AsgiClient) -> None:
        at_us, came_s = clock.now_us(), time.monotonic()
        head = heads.read(scope["headers"])
        if scope["method"] not in _METHODS:
            raise MethodNotAllowed.of(f"{scope['path'][:100]} does not take {scope['method'][:20]}", ", ".join(_METHODS))
        if not _DOTS.isdisjoint(scope["path"].split("/")):
            raise NotFound(f"there is nothing at {scope['path'][:100]}")
        query, key = _query(scope["query_string"].decode("latin-1"))
        origin = Origin(_peer(scope), head.forwarded)
        tenant = self._keys.tenant(head.key or key, at_us, origin)
        length = head.headers.get("content-length", "")
        body = await client.body(self.max_body_bytes, _whole(length))
        client.watch()
        visit = Visit(PASSED_ON, scope["path"], head, origin, tenant, at_us, came_s, len(body))
        call = _call(visit, body, Sketch(model="", stream=False, spans={}))
        await self._servers.pass_on(call, scope["method"], scope["raw_path"].decode("latin-1") + query, client)


@lru_cache(16)
def _turned_away(dialect: str, text: str, retry_after_s: float | None) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Made once: of all answers this one has to cost the least."""
    error = Overloaded(text, retry_after_s=retry_after_s)
    return error.status, error_headers(error), dialects.render_error(dialect, error)


def _absent() -> BadRequest:
    error = BadRequest("the request has no body; send a JSON object")
    error.code = "invalid_json"
    return error


def _peer(scope: MutableMapping[str, Any]) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


async def refuse_upgrade(receive: Receive, send: Send) -> None:
    """Answers 426 to a WebSocket's opening, so that a coding client falls back to HTTP."""
    await receive()
    error = UpgradeRefused("the gateway speaks plain HTTP, not WebSocket")
    headers = error_headers(error)
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": dialects.render_error("openai_chat", error)})


def _query(text: str) -> tuple[str, str | None]:
    """A query as it travels, and the key that Google's clients put there, which stays here."""
    if "key=" not in text:
        return (f"?{text}" if text else ""), None
    pairs = parse_qsl(text, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in pairs if name != "key"])
    return (f"?{rest}" if rest else ""), dict(pairs).get("key")


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-should-retry", b"true" if error.retry else b"false"),
    ]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after_s))))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    headers += error.headers
    return headers


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """A gzip or zstd request body, under the body limit and 100:1."""
    if encoding in ("identity", ""):
        return body
    if encoding not in ("gzip", "x-gzip", "zstd"):
        raise UnsupportedMedia(f"content-encoding {encoding[:20]!r} is not read here; send gzip, zstd or nothing")
    most = min(limit_bytes, max(len(body), 1024) * _MAX_INFLATED_RATIO)
    if encoding == "zstd":
        return _unpack_zstd(body, most)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, most)
        if unpacker.unconsumed_tail:
            raise TooLarge("the unpacked request body is over the limit")
        if not unpacker.eof or unpacker.unused_data:
            raise BadRequest("the body is not one whole gzip stream, though content-encoding says so")
    except zlib.error as error:
        raise BadRequest("the body is not gzip, though content-encoding says so") from error
    return plain


def _unpack_zstd(body: bytes, most: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    try:
        with unpacker.stream_reader(body, read_across_frames=True) as reader:
            plain = reader.read(most + 1)
    except zstandard.ZstdError as error:
        raise BadRequest("the body is not zstd, though content-encoding says so") from error
    if len(plain) > most:
        raise TooLarge("the unpacked request body is over the limit")
    if body and not plain:
        raise BadRequest("the body is not one whole zstd frame, though content-encoding says so")
    return plain


def too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the request body is over the limit of {limit_bytes} bytes")


def _call(visit: Visit, body: bytes, sketch: Sketch) -> Call:
    head, at_us = visit.head, visit.at_us
    return Call(
        id=new_id("call_", at_us), dialect=visit.dialect, tenant=visit.tenant, sketch=sketch, body=body, path=visit.path,
        client=head.client, headers=head.headers, tags=head.tags, run=head.run, parent_run=head.parent_run,
        subgoal=head.subgoal, at_us=at_us, came_s=visit.came_s, sent=head.sent,
    )  # fmt: skip
