"""Live figures of configured engines, handed to the probes of their lanes. Off the path of calls; nothing without `engine:`."""
from __future__ import annotations

import asyncio
from functools import partial

import httpx

from gateway.backends.engines import ENGINES
from gateway.backends.engines.watch import Watch
from gateway.backends.fleet import Fleet, Target
from gateway.backends.http import Address, Request, Stop, Transport
from gateway.lanes.load import Load
from gateway.settings import Settings

_TIMEOUT_S = 2.0
_MOST_BYTES = 8 << 20


class Live:
    """One watch per backend that names its engine."""

    def __init__(self, settings: Settings, fleet: Fleet, transport: Transport) -> None:
        self._fleet, self._tasks = fleet, list[asyncio.Task[None]]()
        self.watches: dict[str, Watch] = {}
        for target in fleet.targets.values():
            engine = settings.backends[target.backend].engine
            if engine is not None and target.backend not in self.watches:
                self.watches[target.backend] = Watch(engine=ENGINES[engine], fetch=partial(_fetch, transport, target))

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(name), name=f"engine {name}") for name in self.watches]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, backend: str) -> None:
        watch = self.watches[backend]
        while watch.engine.paths:
            await self.look(backend)
            await asyncio.sleep(watch.every_s)

    async def look(self, backend: str) -> None:
        """One round: fresh figures go to every lane of the backend; where there are none, what they had grows old."""
        watch = self.watches[backend]
        await watch.look()
        found = watch.load()
        if found is None or found.running is None or found.waiting is None:
            return
        load = Load(found.at, found.running, found.waiting, found.waiting_tokens, found.kv_used, found.hit_rate)
        for key, target in self._fleet.targets.items():
            if target.backend == backend:
                self._fleet.probes[key].load = load


async def _fetch(transport: Transport, target: Target, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    """Ask the server under its root, with the backend's own headers. Raises `OSError` where nothing comes."""
    scheme, host, port = target.address.origin
    root = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    request = Request(method, Address.of(root + path), target.headers, body or b"", _TIMEOUT_S, _TIMEOUT_S, Stop())
    try:
        answer = await transport.send(request)
        answer.read_timeout_s = _TIMEOUT_S
        whole = bytearray()

        def take(piece: bytes) -> bool:
            whole.extend(piece)
            return len(whole) <= _MOST_BYTES

        await answer.pump(take)
        await answer.aclose()
        if len(whole) > _MOST_BYTES:
            raise OSError("its figures are too long")
    except httpx.HTTPError as error:
        raise OSError(str(error) or type(error).__name__) from error
    return answer.status, bytes(whole)
