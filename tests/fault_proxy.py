"""A bad wire: a TCP proxy that holds everything back, loses packets, or cuts, as its test says.

What a network drops TCP sends again, so a lost packet is one that comes late, and all behind it. Nothing is ever lost for good
but by a cut.
"""
from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from tests.upstream import PATIENCE_S

RESENT_S = (0.2, 0.4, 0.8)
"""How late a packet comes that was lost once, twice, three times."""


class FaultProxy:
    """Listens on a free port, in a thread of its own."""

    def __init__(self, target_port: int, seed: int = 7) -> None:
        self.loses = 0.0
        """The share of packets that are lost."""
        self.cuts = 0.0
        """The share of packets at which the connection ends."""
        self.passed = self.lost = self.cut = 0
        self._target, self._luck = target_port, random.Random(seed)
        self._writers = set[asyncio.StreamWriter]()
        self._open = asyncio.Event()
        self._open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="fault-proxy")
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def silence(self) -> None:
        """Nothing passes any more, also of new connections, and nobody is told."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """All passes again, what was held back too."""
        self.loses = self.cuts = 0.0
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _end(self) -> None:
        """Whoever was let in a moment ago has his connection first: cancelled before that, its socket would be nobody's."""
        self._server.close()
        self._open.set()
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0.01)
            quiet = 0 if self._writers else quiet + 1
            for writer in self._writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._kept(writer):
            await self._open.wait()
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self._target)
            async with self._kept(to_them):
                await asyncio.gather(self._pass(reader, to_them), self._pass(theirs, writer))

    @contextlib.asynccontextmanager
    async def _kept(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Until it ends, however it does."""
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError):
                yield
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises `ConnectionError` where this direction ends, which ends the other."""
        while data := await reader.read(65_536):
            await self._open.wait()
            if self._luck.random() < self.cuts:
                self.cut += 1
                break
            if self._luck.random() < self.loses:
                self.lost += 1
                await asyncio.sleep(self._luck.choice(RESENT_S))
            writer.write(data)
            await writer.drain()
            self.passed += 1
        raise ConnectionError
