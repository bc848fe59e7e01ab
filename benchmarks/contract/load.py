"""Load that costs its generator little: kept connections, no task a call, times taken where bytes leave and come."""
from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

_TICK_S = 0.001
_PATIENCE_S = 30.0
_LENGTH = b"\r\ncontent-length: "


class Seen(NamedTuple):
    """What came of one call. Status 0: no answer."""

    team: str
    status: int
    took_s: float


class Line(asyncio.Protocol):
    """One connection, one call at a time; its answers have a length."""

    def __init__(self, gone: Callable[[Line], None]) -> None:
        self._gone = gone
        self._over: Callable[[Line, int, float], None] | None = None
        self._came = bytearray()
        self._wants = self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes, over: Callable[[Line, int, float], None]) -> None:
        """Calls `over` with itself, the status and the seconds."""
        self._over, self._began = over, time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._came += data
        if not self._wants:
            head = self._came.find(b"\r\n\r\n")
            if head < 0:
                return
            start = self._came.index(_LENGTH) + len(_LENGTH)
            self._wants = head + 4 + int(self._came[start : self._came.index(b"\r", start)])
        if len(self._came) >= self._wants:
            status = int(self._came[9:12])
            self._came.clear()
            self._wants = 0
            self._tell(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone(self)
        self._tell(0)

    def _tell(self, status: int) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(self, status, time.perf_counter() - self._began)


@dataclass(frozen=True, slots=True)
class Offer:
    """A team's calls: how many a second, and what each sends, in turn."""

    team: str
    per_s: float
    requests: Iterator[bytes]


class Load:
    """A pool of connections to one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle = deque[Line]()
        self.late_s = 0.0
        """How late the generator itself was at worst: what was due then went out at once."""

    async def connect(self, count: int, request: bytes) -> None:
        """Opened beforehand: else the kernel's queue of new ones would be measured. Each asks once, for a connection that never
        does is closed."""
        connect = asyncio.get_running_loop().create_connection
        ready = deque[Line]()
        for start in range(0, count, 32):
            opened = [connect(lambda: Line(self._lost), "127.0.0.1", self._port) for _ in range(min(32, count - start))]
            self._idle += [line for _, line in await asyncio.gather(*opened)]
            await self.closed(len(self._idle), 0.0, request)
            ready += self._idle
            self._idle.clear()
        self._idle = ready

    def _lost(self, line: Line) -> None:
        if line in self._idle:
            self._idle.remove(line)

    async def closed(self, clients: int, seconds: float, request: bytes) -> list[Seen]:
        """Each client sends its next call when it has its answer."""
        seen, left, end = list[Seen](), clients, time.monotonic() + seconds
        finished = asyncio.Event()

        def over(line: Line, status: int, took_s: float) -> None:
            nonlocal left
            seen.append(Seen("", status, took_s))
            if status and time.monotonic() < end:
                line.ask(request, over)
                return
            left -= 1
            if status:
                self._idle.append(line)
            if not left:
                finished.set()

        for _ in range(clients):
            self._idle.popleft().ask(request, over)
        await finished.wait()
        return seen

    async def open(self, seconds: float, *offers: Offer) -> list[Seen]:
        """Starts calls at even rates, whatever becomes of them; a call for which no connection is left counts as unanswered."""
        seen, sent, finished = list[Seen](), 0, asyncio.Event()
        over = [self._over(offer.team, seen, finished) for offer in offers]
        begun, began = [0] * len(offers), time.monotonic()
        last, self.late_s = 0.0, 0.0
        while (at := time.monotonic() - began) < seconds:
            last, self.late_s = at, max(self.late_s, at - last)
            for n, offer in enumerate(offers):
                due = int(at * offer.per_s)
                while begun[n] < due:
                    begun[n] += 1
                    sent += 1
                    if self._idle:
                        self._idle.popleft().ask(next(offer.requests), over[n])
                    else:
                        seen.append(Seen(offer.team, 0, 0.0))
            await asyncio.sleep(_TICK_S)
        end = time.monotonic() + _PATIENCE_S
        while len(seen) < sent and time.monotonic() < end:
            finished.clear()
            await asyncio.wait_for(finished.wait(), _PATIENCE_S)
        return seen

    def _over(self, team: str, seen: list[Seen], finished: asyncio.Event) -> Callable[[Line, int, float], None]:
        def over(line: Line, status: int, took_s: float) -> None:
            seen.append(Seen(team, status, took_s))
            if status:
                self._idle.append(line)
            finished.set()

        return over
