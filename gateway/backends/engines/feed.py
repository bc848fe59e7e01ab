"""Follows what one engine publishes of its cache, and tells how many tokens left it or that it was emptied.

Three ways in: server-sent events (embedded), a list that each request empties (TensorRT-LLM), ZMQ (vLLM, SGLang). A feed that
breaks is followed anew after a pause; what was missed meanwhile the engine says itself, or the feed starts from nothing.
"""
from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from gateway.backends.engines.kv_events import BadEvents, Event, Hash, Removed, Stored, decode_json
from gateway.backends.fleet import Target
from gateway.backends.http import Address, RawHeaders, Request, Stop, Transport
from gateway.dialects import sse

_log = logging.getLogger("tollway")
_SILENT_S = 60.0
"""An engine that streams its events sends a comment at least so often."""
_DRAIN_EVERY_S = 0.5
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 5.0
_MOST_BLOCKS = 2_000_000
_MOST_BYTES = 16 << 20

Told = Callable[[str, int | None], None]
"""(backend, tokens that left its cache; None: it was emptied)."""


class Contents:
    """Which blocks an engine holds, in whatever memory. A block has left when it has left the last one."""

    def __init__(self) -> None:
        self._media: dict[Hash, set[str | None]] = {}
        self._block_tokens = 16
        self._begun = False

    def __len__(self) -> int:
        return len(self._media)

    def take(self, events: Sequence[Event]) -> tuple[bool, int]:
        """Whether it was emptied, and the tokens that left since then. The emptiness a feed begins with is none."""
        cleared, left = False, 0
        for event in events:
            if isinstance(event, Stored):
                self._block_tokens = event.block_size
                for one in event.hashes:
                    self._media.setdefault(one, set()).add(event.medium)
            elif isinstance(event, Removed):
                left += sum(self._gone(one, event.medium) for one in event.hashes) * self._block_tokens
            else:
                self._media.clear()
                cleared, left = self._begun, 0
        while len(self._media) > _MOST_BLOCKS:
            del self._media[next(iter(self._media))]
        self._begun = True
        return cleared, left

    def _gone(self, one: Hash, medium: str | None) -> bool:
        """A block that nobody told of counts: its coming was missed."""
        media = self._media.get(one, set())
        media.discard(medium)
        if media:
            return False
        self._media.pop(one, None)
        return True


@dataclass(slots=True, kw_only=True)
class Feed:
    """One backend's events. `where` is a path under the server's root, or tcp://HOST:PORT with `replay` beside it."""

    target: Target
    transport: Transport
    where: str
    replay: str | None = None
    drained: bool = False
    told: Told
    contents: Contents = field(default_factory=Contents)
    problem: str | None = None
    """Why it broke last; None while all is well."""
    heard: bool = False
    """Whether anything came since then."""
    _begun: bool = False
    _last_id: bytes = b""

    @property
    def loading(self) -> bool:
        """The engine has taken the connection and never said a word: it reads its model, and calls wait for it."""
        return not self._begun and self.problem is None and not self.drained and not self.where.startswith("tcp://")

    async def run(self) -> None:
        """Follow for as long as the task lives."""
        pause, told = _PAUSE_S, None
        follow = self._zmq if self.where.startswith("tcp://") else self._drain if self.drained else self._stream
        while True:
            try:
                await follow()
                self.problem = "the engine ended its events"
            except (OSError, BadEvents, sse.Malformed) as error:
                self.problem = str(error) or type(error).__name__
                if isinstance(error, BadEvents):
                    self._last_id = b""
            pause = _PAUSE_S if self.heard else min(2 * pause, _LONGEST_PAUSE_S)
            if self.heard or self.problem != told:
                _log.warning("KV events of %s: %s; asking again", self.target.backend, self.problem)
            self.heard, told = False, self.problem
            await asyncio.sleep(pause)

    def take(self, events: Sequence[Event]) -> None:
        """One batch."""
        self.problem, self.heard = None, True
        cleared, left = self.contents.take(events)
        if cleared:
            self.told(self.target.backend, None)
        if left:
            self.told(self.target.backend, left)

    async def _stream(self) -> None:
        splitter = sse.Splitter()
        more = [(b"last-event-id", self._last_id)] if self._last_id else []

        def take(piece: bytes) -> bool:
            self.problem, self.heard, self._begun = None, True, True
            events: list[Event] = []
            for raw in splitter.feed(piece):
                frame = sse.parse(raw)
                if frame is not None:
                    events += decode_json(frame.data)
                    self._last_id = _id_of(raw) or self._last_id
            if events:
                self.take(events)
            return True

        await ask(self.transport, request_to(self.target, "GET", self.where, _SILENT_S, more=more), take, only_200=True)

    async def _drain(self) -> None:
        while True:
            body = bytearray()

            def take(piece: bytes, body: bytearray = body) -> bool:
                body.extend(piece)
                return len(body) <= _MOST_BYTES

            await ask(self.transport, request_to(self.target, "POST", self.where, _SILENT_S), take, only_200=True)
            self.take(decode_json(bytes(body)))
            await asyncio.sleep(_DRAIN_EVERY_S)

    async def _zmq(self) -> None:
        try:
            module = importlib.import_module("gateway.backends.engines.zmq_events")  # pyzmq is an extra
        except ImportError as error:
            raise OSError("events over ZMQ need the extra `engines` (pip install 'tollway[engines]')") from error
        async for batch in module.follow(module.Source(events=self.where, replay=self.replay)):
            self.take(batch)


def _id_of(raw: bytes) -> bytes:
    return next((line[3:].strip() for line in raw.splitlines() if line.startswith(b"id:")), b"")


def request_to(target: Target, method: str, path: str, timeout_s: float, body: bytes = b"", more: RawHeaders = ()) -> Request:
    """Of the server under its root, with the backend's own headers."""
    scheme, host, port = target.address.origin
    root = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    return Request(method, Address.of(root + path), [*target.headers, *more], body, timeout_s, timeout_s, Stop())


async def ask(transport: Transport, request: Request, take: Callable[[bytes], bool], *, only_200: bool = False) -> int:
    """The body of the answer goes to `take` until that says False. Gives the status. Raises `OSError` where nothing comes, and
    for other answers if `only_200`."""
    try:
        answer = await transport.send(request)
        try:
            if only_200 and answer.status != 200:
                raise OSError(f"{request.address.path.decode()} answered {answer.status}")
            answer.read_timeout_s = request.read_timeout_s
            await answer.pump(take)
        finally:
            await answer.aclose()
    except httpx.HTTPError as error:
        raise OSError(str(error) or type(error).__name__) from error
    return answer.status
