"""HTTP/1.1 to model servers on asyncio and httptools: pooled, and stoppable without cancelling anything.

Why not httpx's own transport: its pool costs CPU with the square of its connections and leaks slots when a task is
cancelled inside it. A connection from the pool that ends before any byte of the answer may just have been closed by a
server that did not want to wait, so the request is then sent once more, on a fresh one. Redirects are not followed,
proxies are not used, cookies are not kept.
"""
from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from gateway.backends.exchange import LAST_LOOK_S, Connection, Exchange
from gateway.backends.http import Fields, NoAnswer, Origin, Request, start

_MAX_IDLE_PER_HOST = 256


class WireTransport:
    """Our `Transport`. Limit concurrency above it, it has no limit of its own."""

    def __init__(self, verify: ssl.SSLContext | None = None, keepalive_s: float = 30.0) -> None:
        self._verify = verify
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, list[Connection]] = {}

    async def send(self, request: Request) -> Exchange:
        connection = self._idle_connection(request.address.origin)
        if connection is not None:
            try:
                exchange = _begun(connection, request)
                while not exchange.status:
                    await exchange.next()
                return exchange
            except NoAnswer:
                if request.stop.is_set:
                    raise
        exchange = _begun(await self._connect(request), request)
        while not exchange.status:
            await exchange.next()
        return exchange

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _idle_connection(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest = time.monotonic() - self._keepalive_s
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, request: Request) -> Connection:
        loop = asyncio.get_running_loop()
        scheme, host, port = origin = request.address.origin
        idle = self._idle.setdefault(origin, [])

        def give_back(connection: Connection) -> None:
            if connection.closed or len(idle) >= _MAX_IDLE_PER_HOST:
                connection.abort()
            else:
                idle.append(connection)

        try:
            async with _limit(loop, request.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, give_back), host, port, ssl=self._tls() if scheme == "https" else None
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("the connection took too long") from error
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._verify is None:
            self._verify = ssl.create_default_context()
        return self._verify


@asynccontextmanager
async def _limit(loop: asyncio.AbstractEventLoop, seconds: float | None) -> AsyncIterator[None]:
    """Raises `TimeoutError` after `seconds`, but not for what happened in time and was not looked at."""
    async with asyncio.timeout(None) as limit:
        timer = None
        if seconds is not None:
            timer = loop.call_later(seconds, lambda: limit.reschedule(loop.time() + LAST_LOOK_S))
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()


def _begun(connection: Connection, request: Request) -> Exchange:
    if request.stop.is_set:
        connection.abort()
        raise httpx.ConnectError("stopped before anything was sent")
    if connection.closed:  # by the other end, since it was made
        raise httpx.ConnectError("the connection broke before anything was sent")
    exchange = Exchange(connection, request)
    connection.start(exchange, _head(request), request.body)
    return exchange


def _head(request: Request) -> bytes:
    headers = request.headers
    begin = headers.start if type(headers) is Fields else start(request.method, request.address, headers)
    if not request.body and request.method in ("GET", "HEAD"):
        return begin + b"\r\n"
    return b"%bcontent-length: %d\r\n\r\n" % (begin, len(request.body))
