"""The door for model calls: plain ASGI, since nothing here may cost more than it must.

Reads what the headers say, finds out who asks, reads the body, hands a `Call` to the pipeline and renders its errors in
the caller's dialect. All other paths are Litestar's (`routes.py`).
"""
from __future__ import annotations

import logging
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gateway import dialects
from gateway.access.keys import KeyRing
from gateway.core.call import Call, Tenant
from gateway.core.errors import (
    BadRequest,
    GatewayError,
    MethodNotAllowed,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from gateway.metrics import Metrics
from gateway.relay import Client, ClientGone, Receive, Send

Serve = Callable[[Call, Client], Awaitable[None]]
DIALECT_OF_PATH = {module.PATH: name for name, module in dialects.DIALECTS.items()}
_PRIVATE = frozenset({"authorization", "x-api-key", "cookie", "proxy-authorization"})
_MAX_INFLATED_RATIO = 100
_log = logging.getLogger("tollway.front")


class Front:
    """One ASGI application per process for the paths of `DIALECTS`."""

    def __init__(self, serve: Serve, keys: KeyRing, metrics: Metrics, max_body_bytes: int) -> None:
        self._serve = serve
        self._keys = keys
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self.draining = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        dialect = DIALECT_OF_PATH[scope["path"]]
        client = Client(receive, send)
        try:
            await self._handle(dialect, scope, client)
        except ClientGone:
            self._metrics.refused("client_gone")
        except GatewayError as error:
            self._metrics.refused(error.code)
            await self._refuse(dialect, client, error)
        except Exception:
            _log.exception("a call failed inside the gateway")
            self._metrics.refused("internal_error")
            await self._refuse(dialect, client, GatewayError("the gateway failed on this call; its log says why"))
        finally:
            client.close()

    async def _handle(self, dialect: str, scope: MutableMapping[str, Any], client: Client) -> None:
        at_us = time.time_ns() // 1_000
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['path']} takes POST")
        tenant = self._keys.tenant(presented_key(headers), at_us)
        body = await self._body(headers, client)
        client.watch()
        sketch = dialects.read(dialect, body)
        await self._serve(_call(dialect, scope["path"], tenant, headers, body, sketch, at_us), client)

    async def _body(self, headers: Mapping[str, str], client: Client) -> bytes:
        kind = headers.get("content-type", "application/json")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise UnsupportedMedia("send the request as application/json")
        length = headers.get("content-length", "")
        body = await client.body(self._max_body_bytes, int(length) if length.isdigit() else None)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            body = inflate(body, encoding, self._max_body_bytes)
        if not body:
            raise BadRequest("the request has no body; send a JSON object")
        return body

    async def _refuse(self, dialect: str, client: Client, error: GatewayError) -> None:
        if client.ended:
            return
        if client.started:
            await client.end()
            return
        await client.respond(error.status, error_headers(error), dialects.render_error(dialect, error))


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a request shows, from `Authorization: Bearer` or `x-api-key`."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key")


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-should-retry", b"true" if error.retry else b"false"),
    ]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """A gzip request body, under the body limit and 100:1."""
    if encoding not in ("gzip", "x-gzip"):
        raise UnsupportedMedia(f"content-encoding {encoding[:20]!r} is not read here; send gzip or nothing")
    most = min(limit_bytes, max(len(body), 1024) * _MAX_INFLATED_RATIO)
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


def call_id() -> str:
    """Sortable by time, unguessable in its second half."""
    return f"call_{time.time_ns() // 1_000_000:011x}{secrets.token_hex(8)}"


def _call(
    dialect: str, path: str, tenant: Tenant, headers: dict[str, str], body: bytes, sketch: Any, at_us: int
) -> Call:
    product = headers.get("user-agent", "").split(" ", 1)[0]
    for name in _PRIVATE & headers.keys():
        del headers[name]
    return Call(
        id=call_id(),
        dialect=dialect,
        tenant=tenant,
        sketch=sketch,
        body=body,
        path=path,
        client=product.lower()[:80],
        headers=headers,
        tags=tags(headers.get("x-tollway-tags", "")),
        run=_name(headers.get("x-tollway-run")),
        parent_run=_name(headers.get("x-tollway-parent-run")),
        subgoal=_name(headers.get("x-tollway-subgoal")),
        at_us=at_us,
    )


def tags(text: str) -> dict[str, str]:
    """`a=b,c=d`; what does not look like that is left out."""
    pairs = (pair.partition("=") for pair in text.split(",")[:20]) if text else ()
    return {k.strip()[:64]: v.strip()[:128] for k, eq, v in pairs if eq and k.strip() and (k + v).isprintable()}


def _name(text: str | None) -> str | None:
    return text[:128] if text and text.isprintable() else None
