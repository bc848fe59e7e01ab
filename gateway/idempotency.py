"""`Idempotency-Key`: the same call asked for twice is made once.

The key counts within its team for 24 hours from the call's end. Asked for again with the same request: while the call runs
409, which an SDK tries again; when it is over its answer once more, or where that was too large to be kept 422 `already_done`
with the call's id. With another request: 422 `idempotency_mismatch`. Nothing is remembered of a request that failed
validation, or of a call that was not answered in full; of one that was, it is written before the last byte leaves. While the
database is away each process knows its own calls only.
"""
from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from gateway.core import clock
from gateway.core.call import Call
from gateway.core.errors import AlreadyDone, BadRequest, IdempotencyMismatch, StillRunning
from gateway.memory_table import MemoryTable, Use
from gateway.relay import Client, Headers

HEADER = "idempotency-key"
KEPT_BYTES = 256 * 1024
KEEP_US, RUNNING_US = 24 * 3_600 * 1_000_000, 15 * 60 * 1_000_000
"""How long a finished use counts, and one whose process may have died in the middle."""
_MOST = 10_000
_log = logging.getLogger("tollway.idempotency")


class Idempotency:
    """One per process; off the way of a call without the header."""

    def __init__(self, table: MemoryTable, now_us: Callable[[], int] = clock.now_us) -> None:
        self._table, self._now_us = table, now_us
        self._own: OrderedDict[tuple[str, str], tuple[Use, int]] = OrderedDict()

    async def once(self, call: Call, client: Client, answer: Callable[[Client], Awaitable[None]]) -> None:
        """Answers the call, or tells what became of the one before. Raises as `answer` does, and as `_enter`."""
        recording = await self._enter(call, client)
        if recording is None:
            return
        try:
            await answer(recording)
        finally:
            if not recording.complete:
                await self._drop(call)

    async def _enter(self, call: Call, client: Client) -> Recording | None:
        """The client to answer through; None if it has been answered from memory. Raises `BadRequest`, `StillRunning`,
        `AlreadyDone` or `IdempotencyMismatch`."""
        raw = call.headers[HEADER]
        if not 0 < len(raw) <= 255 or not raw.isascii() or not raw.isprintable():
            raise BadRequest("Idempotency-Key must have 1 to 255 printable ASCII characters")
        key = _digest(call)
        print_ = hashlib.sha256(b"\0".join((call.path.encode(), call.body))).hexdigest()
        use, now_us = Use(print_, call.id), self._now_us()
        earlier = self._claim_here(call.tenant.team, key, use, now_us) or await self._claim(call.tenant.team, key, use, now_us)
        if earlier is None:
            return Recording(client, partial(self._done, call))
        await _again(earlier, use, client)
        return None

    async def _done(self, call: Call, client: Recording) -> None:
        """The answer is whole and about to leave."""
        team, key = call.tenant.team, _digest(call)
        own, _ = self._own.get((team, key), (None, 0))
        if own is None:
            return
        expires_us = self._now_us() + KEEP_US
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in client.headers]
        done = Use(own.fingerprint, call.id, client.status, headers if client.kept is not None else None, client.kept)
        self._remember(team, key, Use(own.fingerprint, call.id, client.status), expires_us)
        try:
            await self._table.finish(team, key, done, expires_us)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("the database is away (%s): an idempotency key is known in this process only", type(error).__name__)

    async def _drop(self, call: Call) -> None:
        self._own.pop((call.tenant.team, _digest(call)), None)
        try:
            await self._table.drop(call.tenant.team, _digest(call), call.id)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("the database is away (%s): an idempotency key stays taken for a while", type(error).__name__)

    def _claim_here(self, team: str, key: str, use: Use, now_us: int) -> Use | None:
        """What this process knows of a running call. A finished one is looked up, where its answer is."""
        known, expires_us = self._own.get((team, key), (None, 0))
        if known is not None and known.status is None and expires_us > now_us:
            return known
        return None

    async def _claim(self, team: str, key: str, use: Use, now_us: int) -> Use | None:
        known, until_us = self._own.get((team, key), (None, 0))
        self._remember(team, key, use, now_us + RUNNING_US)
        try:
            earlier = await self._table.claim(team, key, use, now_us, now_us + RUNNING_US)
        except (SQLAlchemyError, OSError):
            earlier = known if until_us > now_us else None
        if earlier is not None:
            self._own.pop((team, key), None)
            if known is not None:
                self._remember(team, key, known, until_us)
        return earlier

    def _remember(self, team: str, key: str, use: Use, expires_us: int) -> None:
        self._own[team, key] = use, expires_us
        if len(self._own) > _MOST:
            self._own.popitem(last=False)


def _digest(call: Call) -> str:
    return hashlib.sha256(call.headers[HEADER].encode()).hexdigest()


async def _again(earlier: Use, use: Use, client: Client) -> None:
    if earlier.fingerprint != use.fingerprint:
        raise IdempotencyMismatch(f"this Idempotency-Key was used for another request (call {earlier.call_id})")
    if earlier.status is None:
        raise StillRunning(f"the call with this Idempotency-Key is still running ({earlier.call_id})", retry_after_s=1)
    if earlier.answer is None:
        raise AlreadyDone(f"the call with this Idempotency-Key is done ({earlier.call_id}), and its answer was not kept")
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in earlier.headers or ()]
    await client.respond(earlier.status, [*headers, (b"idempotent-replayed", b"true")], earlier.answer)


class Recording(Client):
    """Another client, whose answer is also kept here as long as it is small."""

    __slots__ = ("_on_whole", "_parts", "_size", "_to", "headers", "status")

    def __init__(self, to: Client, on_whole: Callable[[Recording], Awaitable[None]]) -> None:
        self._to, self._on_whole = to, on_whole
        self._parts: list[bytes] | None = []
        self._size = 0
        self.status = 0
        self.headers: Headers = ()

    @property
    def kept(self) -> bytes | None:
        return None if self._parts is None else b"".join(self._parts)

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > KEPT_BYTES:
            self._parts = None
        elif self._parts is not None and data:
            self._parts.append(data)

    @property
    def gone(self) -> bool:  # type: ignore[override]
        return self._to.gone

    @property
    def started(self) -> bool:  # type: ignore[override]
        return self._to.started

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._to.ended

    @property
    def complete(self) -> bool:
        return self._to.complete

    @complete.setter
    def complete(self, whole: bool) -> None:
        self._to.complete = whole

    def on_gone(self, listener: Callable[[], None] | None) -> None:
        self._to.on_gone(listener)

    async def pause(self, seconds: float) -> None:
        await self._to.pause(seconds)

    def ping(self, every_s: float, data: bytes) -> None:
        self._to.ping(every_s, data)

    def begin(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._to.begin(status, headers)

    def write(self, data: bytes) -> bool:
        self._keep(data)
        return self._to.write(data)

    async def drained(self) -> None:
        await self._to.drained()

    async def end(self, data: bytes = b"") -> None:
        self._keep(data)
        if self.complete:
            await self._on_whole(self)
        await self._to.end(data)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.status, self.headers = status, headers
        self._keep(body)
        if self.complete:
            await self._on_whole(self)
        await self._to.respond(status, headers, body)

    def close(self) -> None:
        self._to.close()
