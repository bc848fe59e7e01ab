"""The prefix index of several processes and replicas as one, through a stream in Redis.

Each process appends what it has learnt, in batches, and reads what the others have: predictions are made from memory and
never wait. With Redis away every process goes on with its own; what it learns meanwhile waits, bounded, and is told then. A
process that starts reads the last minutes. Only numbers travel: no text, no team name.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
import time
from collections.abc import Iterator
from itertools import islice

from gateway.prefix.index import PrefixIndex
from gateway.redis_link import Away, Link, Refused

_EVERY_S = 0.1
_BACK_MS = 600_000
_MOST_PAIRS, _MOST_WAITING, _MOST_BATCHES, _AT_ONCE = 5_000, 100_000, 2_000, 50
_PAIR = struct.Struct("<QQ")
_log = logging.getLogger("tollway.prefix")


class SharedIndex:
    """Runs beside an index; `start` begins to share it. The link is its own."""

    def __init__(self, index: PrefixIndex, link: Link, org: str, every_s: float = _EVERY_S) -> None:
        self._index, self._link, self._every_s = index, link, every_s
        self._stream = f"tollway:{org}:prefixes"
        self._me = secrets.token_bytes(8)
        self._last = f"{time.time_ns() // 1_000_000 - _BACK_MS}-0"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._index.fresh = {}
        await self._link.start(0.0)
        self._task = asyncio.create_task(self._run(), name="prefix-sharing")

    async def close(self) -> None:
        self._index.fresh = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._link.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.turn()
            except Away:
                pass
            except Refused as error:
                _log.warning("prefixes are not shared: %s", error)
                await asyncio.sleep(5.0)

    async def turn(self) -> None:
        """Tells what is new and takes what is. Raises `Away`, `Refused`."""
        fresh = self._index.fresh or {}
        if len(fresh) > _MOST_WAITING:
            for key in list(islice(fresh, len(fresh) - _MOST_WAITING)):
                del fresh[key]
        while fresh and self._link.up:
            batch = list(islice(fresh.items(), _MOST_PAIRS))
            data = b"".join(_PAIR.pack(*pair) for pair in batch)
            await self._link.call(
                "XADD", self._stream, "MAXLEN", "~", _MOST_BATCHES, "*", "from", self._me, "pairs", data
            )  # fmt: skip
            for key, value in batch:
                if fresh.get(key) == value:
                    del fresh[key]
        while await self._take():
            pass

    async def _take(self) -> bool:
        """Whether there may be more."""
        found = await self._link.call("XREAD", "COUNT", _AT_ONCE, "STREAMS", self._stream, self._last)
        if not found:
            return False
        entries = found[0][1]
        for name, fields in entries:
            self._last = name.decode("ascii")
            told = dict(zip(fields[::2], fields[1::2], strict=False))
            if told.get(b"from") != self._me:
                self._index.take(_pairs(told.get(b"pairs", b"")))
        return len(entries) == _AT_ONCE


def _pairs(data: bytes) -> Iterator[tuple[int, int]]:
    """Whole pairs of a batch; what another version may have written besides is left out."""
    return _PAIR.iter_unpack(data[: len(data) // _PAIR.size * _PAIR.size])
