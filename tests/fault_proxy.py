"""A bad wire: a TCP proxy that holds everything back, loses packets, or cuts, as its test says.

What a network drops TCP sends again, so a lost packet is one that comes late, and all behind it. Nothing is ever lost for good
but by a cut. It works on bare sockets: asyncio's server forgets whom it has accepted when it is closed before their streams are
made, and their sockets are then nobody's.
"""
from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading

from tests.upstream import PATIENCE_S

RESENT_S = (0.2, 0.4, 0.8)
"""How late a packet comes that was lost once, twice, three times."""


class FaultProxy:
    """Listens on a free port, in a thread of its own; all that it opens is closed when `close` returns."""

    def __init__(self, target_port: int, seed: int = 7) -> None:
        self.loses = 0.0
        """The share of packets that are lost."""
        self.cuts = 0.0
        """The share of packets at which the connection ends."""
        self.passed = self.lost = self.cut = 0
        self._target, self._luck = ("127.0.0.1", target_port), random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._connections = set[asyncio.Task[None]]()
        self._open = asyncio.Event()
        self._open.set()
        self._end = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="fault-proxy")
        self._thread.start()

    def silence(self) -> None:
        """Nothing passes any more, also of new connections, and nobody is told."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """All passes again, what was held back too."""
        self.loses = self.cuts = 0.0
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the bad wire did not end"

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._work())

    async def _work(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        await self._end.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        """The socket is closed with its task, also with one that is cancelled before its first step."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            theirs, _ = self._listener.accept()
            task = self._loop.create_task(self._serve(theirs))
            self._connections.add(task)
            task.add_done_callback(lambda _: theirs.close())
            task.add_done_callback(self._connections.discard)

    async def _serve(self, theirs: socket.socket) -> None:
        await self._open.wait()
        with socket.socket() as ours:
            for each in (theirs, ours):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._loop.sock_connect(ours, self._target)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(theirs, ours))
                    both.create_task(self._pass(ours, theirs))
            except* OSError:
                pass

    async def _pass(self, source: socket.socket, to: socket.socket) -> None:
        """Raises `ConnectionError` where this direction ends, which ends the other."""
        while data := await self._loop.sock_recv(source, 65_536):
            await self._open.wait()
            if self._luck.random() < self.cuts:
                self.cut += 1
                break
            if self._luck.random() < self.loses:
                self.lost += 1
                await asyncio.sleep(self._luck.choice(RESENT_S))
            await self._loop.sock_sendall(to, data)
            self.passed += 1
        raise ConnectionError
