"""One pipelined connection to Redis or Valkey for the whole process.

Commands of all calls go down one socket, those of one turn of the event loop in one write; replies come back in order. A
command costs about a tenth of what redis-py's pool does (docs/decisions/0004). Three rules keep it safe: a command that is not
answered in time ends the connection, so that a late reply can never be taken for another's; nothing is ever sent twice by
the link itself (who asked knows whether asking again is harmless); and while the server is away every call fails at once.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import hiredis

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
TIMEOUT_S = 0.2
"""As long as a command waits for its answer: with a busy loop's lateness, less than the 250 ms that are promised."""
_CONNECT_S = 1.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 0.25
_GRACE_S = 0.01
_NOT_YET = object()
_OLDEST = (7, 0)
_log = logging.getLogger("tollway.redis")


class Away(Exception):
    """The server cannot be reached, or did not answer in time. Whether it did what it was asked is not known."""


class Refused(Exception):
    """The server answered with an error: a command, script or password that it does not take."""


class BadAddress(ValueError):
    """The address cannot be used; the text says why and holds no password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`redis://[USER:PASSWORD@]HOST[:PORT][/DB]`; `rediss` and `valkeys` are TLS."""

    host: str
    port: int = 6379
    db: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False

    def __repr__(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.host}:{self.port}/{self.db}"


def address(url: str) -> Address:
    """Raises `BadAddress`."""
    try:
        parts = urlsplit(url)
        port, db = parts.port or 6379, parts.path.strip("/") or "0"
    except ValueError:
        raise BadAddress("is no address such as redis://HOST:6379/0") from None
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.query or parts.fragment:
        raise BadAddress("must look like redis://HOST:6379/0; rediss:// for TLS, valkey:// and valkeys:// are the same")
    if not db.isascii() or not db.isdigit():
        raise BadAddress("the part after the last / must be the number of a database")
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return Address(
        host=parts.hostname, port=port, db=int(db), user=user or None, password=password, tls=_SCHEMES[parts.scheme]
    )


class Link:
    """`call` sends a command; `up` says whether there is a connection."""

    def __init__(
        self, server: Address, *, timeout_s: float = TIMEOUT_S, ca_file: str | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.run_id = ""
        """The server process's own id: another one means that memory may have been lost."""
        self.problem: str | None = "not connected yet"
        """Why it is not up; None if it is."""
        self._timeout_s = timeout_s
        self._greet: Callable[[Link], Awaitable[None]] | None = None
        self._on_up: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._tls = ssl.create_default_context(cafile=ca_file) if server.tls else None
        self._wire: _Wire | None = None
        self._ready: _Wire | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._lost, self._found = asyncio.Event(), asyncio.Event()

    def attach(self, greet: Callable[[Link], Awaitable[None]], on_up: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """`greet` may use `greeting` only; `on_up` runs in the same step in which calls may begin, before any of them."""
        self._greet, self._on_up, self._on_lost = greet, on_up, on_lost

    @property
    def up(self) -> bool:
        return self._ready is not None

    def call(self, *command: str | bytes | int) -> asyncio.Future[Any]:
        """The reply to one command. The future raises `Away` or `Refused`; a waiter that is cancelled disturbs nobody."""
        if self._ready is None:
            raise Away(self.problem or "away")
        return self._ready.send(command)

    def greeting(self, *command: str | bytes | int) -> asyncio.Future[Any]:
        """As `call`, on a connection that is being greeted."""
        if self._wire is None:
            raise Away(self.problem or "away")
        return self._wire.send(command)

    async def start(self, wait_s: float = 2.0) -> bool:
        """Begins to connect and goes on for as long as it lives; waits a little for the first connection."""
        self._keeper = asyncio.create_task(self._keep(), name="redis-link")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._found.wait()
        return self.up

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._closing = True
        if self._wire is not None:
            self._wire.abort("closed")

    def drop(self, why: str) -> None:
        """Ends the connection: what comes down it is not to be trusted."""
        if self._wire is not None:
            self._wire.abort(why)

    async def _keep(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            self._lost.clear()
            try:
                await self._connect()
            except (OSError, TimeoutError, Away, Refused, ssl.SSLError) as error:
                if self._wire is not None:
                    self._wire.abort("greeting failed")
                self._note(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
                await asyncio.sleep(backoff_s * random.uniform(0.75, 1.25))
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                continue
            backoff_s = _FIRST_BACKOFF_S
            await self._lost.wait()

    async def _connect(self) -> None:
        loop, server = asyncio.get_running_loop(), self.server
        async with asyncio.timeout(_CONNECT_S):
            _, wire = await loop.create_connection(
                lambda: _Wire(loop, self._timeout_s, self._gone), server.host, server.port, ssl=self._tls
            )
        self._wire = wire
        await self._hello(wire)
        if self._greet is not None:
            await self._greet(self)
        if wire.closed:
            raise Away("it hung up")
        self._ready, self.problem = wire, None
        self._on_up()
        self._found.set()
        _log.info("redis: connected to %r", server)

    async def _hello(self, wire: _Wire) -> None:
        server = self.server
        if server.password is not None:
            who = (server.user, server.password) if server.user else (server.password,)
            await wire.send(("AUTH", *who))
        if server.db:
            await wire.send(("SELECT", server.db))
        text: bytes = await wire.send(("INFO", "server"))
        facts = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        version = facts.get("valkey_version") or facts.get("redis_version", "0")
        if tuple(int(n) for n in version.split(".")[:2]) < _OLDEST:
            raise Refused(f"version {version} is too old; 7.0 is the oldest that will do")
        self.run_id = facts.get("run_id", "")

    def _gone(self, wire: _Wire, why: str) -> None:
        if wire is self._ready:
            self._ready = None
            self._note(why)
            self._on_lost()
        if wire is self._wire:
            self._wire = None
            self._lost.set()

    def _note(self, why: str) -> None:
        if self.problem != why and not self._closing:
            _log.warning("redis: %r is away: %s", self.server, why)
        self.problem = why


class _Wire(asyncio.Protocol):
    """One TCP connection: commands out, replies in the same order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, on_closed: Callable[[_Wire, str], None]) -> None:
        self.closed = False
        self._loop, self._timeout_s, self._on_closed = loop, timeout_s, on_closed
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._late: asyncio.Future[Any] | None = None

    def send(self, command: tuple[str | bytes | int, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(Away("the connection is closed"))
            future.exception()          # as where it breaks: nobody need look
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        self._waiting.append((future, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._look)
        return future

    def _flush(self) -> None:
        """Nothing is written into a connection that has broken, which uvloop takes for a mistake; its end fails what waits."""
        if self._transport is not None and self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
        self._out.clear()

    def _look(self) -> None:
        """One timer for all commands: it looks at the oldest."""
        self._watch = None
        if not self._waiting:
            return
        future, since = self._waiting[0]
        left_s = since + self._timeout_s - self._loop.time()
        if left_s <= 0 and self._late is not future:  # we may be late ourselves: what has come meanwhile is read first
            self._late = future
            self._watch = self._loop.call_later(_GRACE_S, self._look)
        elif left_s <= 0:
            self.abort(f"no answer in {self._timeout_s * 1e3:.0f} ms")
        else:
            self._watch = self._loop.call_later(left_s, self._look)

    def abort(self, why: str) -> None:
        """Closes at once; everybody who waits is told."""
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        self._on_closed(self, why)
        for future, _ in waiting:
            if not future.done():
                future.set_exception(Away(why))
                future.exception()      # a settlement that nobody waits for is not a fault to log

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _NOT_YET:
                future, _ = waiting.popleft()
                if future.done():       # its waiter was cancelled: the reply is read and forgotten
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    future.set_exception(Refused(str(reply)))
                    future.exception()
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.abort(f"an answer that is none: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(str(exc) if exc else "it hung up")
