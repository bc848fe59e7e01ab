"""What the processes of one gateway tell each other of prompts and lanes, so that they predict, plan and route as one.

Each process says what it has learnt, in batches, and hears what the others have; everything is read from memory and nothing
on a call's path waits for it. Workers of one machine speak through their house, replicas through a stream in Redis. With
Redis away every process goes on with its own; what it learns meanwhile waits, bounded, and is told then. A process that starts
hears the last minutes. Topics are numbers and digests; those that carry text of prompts say so, and travel through Redis only
where the operator wants it.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import msgspec

from gateway.normalize.memory import Memory, Shared
from gateway.planner import Planner
from gateway.planner.bets import Added
from gateway.prefix.index import PrefixIndex
from gateway.redis_link import Away, Link, Refused

_EVERY_S = 0.1
_BACK_MS = 600_000
_MOST_PAIRS, _MOST_WAITING, _MOST_BATCHES, _AT_ONCE = 5_000, 100_000, 2_000, 50
_MOST_TEXT_PAIRS = 50
_log = logging.getLogger("tollway.sharing")


class Source(Protocol):
    """Something that processes know together. `fresh`: what was learnt here and not told yet; None while nobody shares it."""

    fresh: dict[Any, Any] | None

    def take(self, pairs: Iterable[Any]) -> None:
        """What another process has learnt."""


@dataclass(frozen=True, slots=True)
class Topic:
    """`pair`: the types of a key and its value. `text`: whether words of prompts travel."""

    name: str
    source: Source
    pair: Any
    text: bool = False


def topics(index: PrefixIndex, planner: Planner, memory: Memory) -> list[Topic]:
    return [
        Topic("prefixes", index, tuple[int, int]),
        Topic("held", planner.held, tuple[int, tuple[int, float]]),
        Topic("writing", planner.writing, tuple[int, int]),  # before what makes others plan otherwise
        Topic("reuse", planner.reuse, tuple[int, tuple[int, str, str, str, int, int]]),
        Topic("bets", planner.bets, tuple[int, Added]),
        Topic("objects", planner.heads, tuple[int, tuple[str, int]]),
        Topic("arrivals", planner.arrivals, tuple[int, tuple[int, int, int, float]]),
        Topic("keys", planner.keys, tuple[bytes, bytes]),
        Topic("forms", memory.forms, tuple[bytes, tuple[bytes, bytes]], text=True),
        Topic("conversations", memory, tuple[bytes, Shared], text=True),
    ]


class Exchange(Protocol):
    """A way to the other processes. All may raise `Away` or `Refused`."""

    @property
    def up(self) -> bool: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def post(self, topic: str, data: bytes) -> None: ...

    async def take(self) -> tuple[Sequence[tuple[str, bytes]], bool]:
        """What others have posted since, and whether there may be more."""


class Sharing:
    """Runs beside the calls; `start` begins to share."""

    def __init__(self, shared: Sequence[Topic], exchange: Exchange, every_s: float = _EVERY_S) -> None:
        self._topics = {topic.name: topic for topic in shared}
        self._decoders = {topic.name: msgspec.msgpack.Decoder(list[topic.pair]) for topic in shared}  # type: ignore[name-defined]
        self._exchange, self._every_s = exchange, every_s
        self._encoder = msgspec.msgpack.Encoder()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for topic in self._topics.values():
            topic.source.fresh = {}
        await self._exchange.start()
        self._task = asyncio.create_task(self._run(), name="sharing")

    async def close(self) -> None:
        for topic in self._topics.values():
            topic.source.fresh = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._exchange.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.turn()
            except Away:
                pass
            except Refused as error:
                _log.warning("what is known of prompts is not shared: %s", error)
                await asyncio.sleep(5.0)

    async def turn(self) -> None:
        """Tells what is new and takes what is. Raises `Away`, `Refused`."""
        for topic in self._topics.values():
            await self._tell(topic)
        more = True
        while more:
            posts, more = await self._exchange.take()
            for name, data in posts:
                self._hear(name, data)

    async def _tell(self, topic: Topic) -> None:
        fresh = topic.source.fresh or {}
        if len(fresh) > _MOST_WAITING:
            for key in list(islice(fresh, len(fresh) - _MOST_WAITING)):
                del fresh[key]
        while fresh and self._exchange.up:
            batch = list(islice(fresh.items(), _MOST_TEXT_PAIRS if topic.text else _MOST_PAIRS))
            await self._exchange.post(topic.name, self._encoder.encode(batch))
            for key, value in batch:
                if fresh.get(key) is value or fresh.get(key) == value:
                    del fresh[key]

    def _hear(self, name: str, data: bytes) -> None:
        topic = self._topics.get(name)
        if topic is None:
            return
        try:
            topic.source.take(self._decoders[name].decode(data))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:  # a process of another version
            _log.warning("news of %s could not be read: %s", name, error)


class RedisExchange:
    """A stream that all replicas append to and read. The link is its own."""

    def __init__(self, link: Link, org: str) -> None:
        self._link = link
        self._stream = f"tollway:{org}:shared"
        self._me = secrets.token_bytes(8)
        self._last: str | None = None
        """Of the stream, which is numbered by Redis' clock."""

    @property
    def up(self) -> bool:
        return self._link.up

    async def start(self) -> None:
        await self._link.start(0.0)

    async def close(self) -> None:
        await self._link.close()

    async def post(self, topic: str, data: bytes) -> None:
        await self._link.call(
            "XADD", self._stream, "MAXLEN", "~", _MOST_BATCHES, "*", "from", self._me, "topic", topic, "data", data
        )  # fmt: skip

    async def take(self) -> tuple[Sequence[tuple[str, bytes]], bool]:
        if self._last is None:
            seconds, _ = await self._link.call("TIME")
            self._last = f"{int(seconds) * 1_000 - _BACK_MS}-0"
        found = await self._link.call("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._stream, self._last)
        if not found:
            return [], False
        entries, posts = found[0][1], []
        for name, fields in entries:
            self._last = name.decode("ascii")
            told = dict(zip(fields[::2], fields[1::2], strict=False))
            if told.get(b"from") != self._me:
                posts.append((told.get(b"topic", b"").decode("ascii", "replace"), told.get(b"data", b"")))
        return posts, len(entries) == _AT_ONCE
