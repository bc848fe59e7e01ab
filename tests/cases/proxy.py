"""Lets a client use the keys of a case: a TCP proxy that puts the gateway's own keys in their place in the request's head.

The rest of each connection passes as it comes, both ways, and so does a hang-up.
"""
from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping


class KeyProxy:
    """Listens on a free port; `target` is the gateway's, and may change when that starts again."""

    def __init__(self) -> None:
        self.target = 0
        self.keys: Mapping[bytes, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="key-proxy")
        self._thread.start()
        server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512))
        self._server: asyncio.Server = server  # type: ignore[assignment]
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            async with _closing(writer):
                head = await reader.readuntil(b"\r\n\r\n")
                for theirs, ours in self.keys.items():
                    for end in (b"\r", b" "):
                        head = head.replace(b" " + theirs + end, b" " + ours + end)
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
                async with _closing(far_writer):
                    far_writer.write(head)
                    pumps = [asyncio.ensure_future(_pump(reader, far_writer)), asyncio.ensure_future(_pump(far_reader, writer))]
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                    for pump in pumps:
                        pump.cancel()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _run(self, coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
