"""What the simulated gateway stands between: clients, model servers, and a database that comes and goes."""
from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.backends.http import RawHeaders, Request, Take
from gateway.ledger import Entry
from gateway.relay import Client, Headers
from tests.build import DONE, chat_answer, chat_chunk, chat_usage

FAULTS = (
    "none", "none", "none", "none", "none", "none", "refused", "reset", "busy", "limited", "silent", "slow", "cut", "no end",
    "nonsense", "no usage", "stalled", "error body",
)  # fmt: skip


class Rows:
    """The database's table. `away`: it takes nothing; `forgets`: it takes the rows and its answer is lost."""

    def __init__(self) -> None:
        self.table: dict[str, Entry] = {}
        self.away = self.forgets = False
        self.changed: list[str] = []
        """Ids that were put in twice, with different contents."""

    async def insert(self, entries: Sequence[Entry]) -> list[str]:
        await asyncio.sleep(0.004)
        if self.away:
            raise OSError("the database is away")
        for entry in entries:
            there = self.table.setdefault(entry.id, entry)
            if there != entry:
                self.changed.append(entry.id)
        if self.forgets:
            raise OSError("the connection ended before the answer")
        return [entry.id for entry in entries]


@dataclass
class Answer:
    """See `gateway.backends.http.Answer`."""

    request: Request
    status: int
    headers: RawHeaders
    pieces: list[tuple[float, bytes]]
    """Seconds before each, and the piece."""
    ends: Exception | None
    closed: Callable[[], None]
    read_timeout_s: float | None = None
    finished = False

    def whole(self) -> bytes | None:
        return None

    async def pump(self, take: Take) -> None:
        while self.pieces:
            wait_s, piece = self.pieces.pop(0)
            await waits(self.request, wait_s, self.read_timeout_s)
            if not take(piece):
                return
        if self.ends is not None:
            raise self.ends

    async def aclose(self) -> None:
        self.closed()


async def waits(request: Request, seconds: float, most_s: float | None) -> None:
    """Lets time pass, but no longer than the gateway waits for a server."""
    over = asyncio.Event()
    request.stop.watch(over.set)
    if request.stop.is_set:
        over.set()
    limit = seconds if most_s is None else min(seconds, most_s)
    try:
        await asyncio.wait_for(over.wait(), limit)
        raise httpx.ReadError("stopped")
    except TimeoutError:
        if most_s is not None and seconds > most_s:
            raise httpx.ReadTimeout("silent for too long") from None
    finally:
        request.stop.watch(None)


@dataclass
class Sent:
    """One request that a server got, and what it answered."""

    at_s: float
    fault: str
    body: dict[str, Any]
    usage: dict[str, int]


class Servers:
    """Model servers, as a transport. Each request draws its fault."""

    def __init__(self, chance: random.Random, share: float) -> None:
        self._chance, self._share = chance, share
        self.sent: list[Sent] = []
        self.open = 0
        self.dead = False

    async def aclose(self) -> None:
        """Nothing is kept."""

    async def send(self, request: Request) -> Answer:
        if self.dead:
            raise httpx.ConnectError("whoever sends this has been killed")
        chance, loop = self._chance, asyncio.get_running_loop()
        fault = chance.choice(FAULTS) if chance.random() < self._share else "none"
        body = json.loads(request.body)
        number = len(self.sent) + 1
        usage = {"prompt_tokens": number, "completion_tokens": chance.randrange(1, body["max_tokens"] + 1), "total_tokens": 0}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        self.sent.append(Sent(loop.time(), fault, body, usage))
        await asyncio.sleep(0.001)
        if fault == "refused":
            raise httpx.ConnectError("refused")
        await waits(request, 900.0 if fault == "silent" else chance.expovariate(4.0), request.read_timeout_s)
        if fault == "reset":
            raise httpx.ReadError("reset")
        self.open += 1
        return self._answer(request, fault, usage, bool(body.get("stream")))

    def _answer(self, request: Request, fault: str, usage: dict[str, int], stream: bool) -> Answer:
        def say(status: int, pieces: list[tuple[float, bytes]], ends: Exception | None = None, kind: str = "json") -> Answer:
            content = b"text/event-stream" if kind == "stream" else b"application/json"
            return Answer(request, status, [(b"content-type", content), *more], pieces, ends, self._closed)

        more: list[tuple[bytes, bytes]] = []
        if fault in ("busy", "limited"):
            more = [(b"retry-after", b"1")]
            status = 503 if fault == "busy" else 429
            return say(status, [(0.0, b'{"error":{"message":"later","type":"server_error"}}')])
        if fault == "error body":
            return say(200, [(0.0, b'{"error":{"message":"broken","type":"server_error"}}')])
        cut = httpx.ReadError("cut") if fault in ("cut", "nonsense") else None
        if not stream:
            document = chat_answer(usage=usage)
            if fault == "no usage":
                del document["usage"]
            told = json.dumps(document).encode()
            half = len(told) // 2
            return say(200, [(0.01, told[:half]), *([] if cut else [(0.05, told[half:])])], cut)
        gap_s = 900.0 if fault == "stalled" else 0.03
        words = [(gap_s if n == 2 else 0.03, chat_chunk({"content": "toll "})) for n in range(self._chance.randrange(1, 8))]
        if fault == "nonsense":
            words.append((0.01, b"data: {not json\n\n"))
        end = [] if fault in ("cut", "nonsense", "no end") else [(0.01, chat_chunk({}, "stop"))]
        last = [] if not end or fault == "no usage" else [(0.0, chat_usage(usage))]
        return say(200, [*words, *end, *last, *([(0.0, DONE)] if end else [])], cut, "stream")

    def _closed(self) -> None:
        self.open -= 1


@dataclass(eq=False)
class Reader(Client):
    """A client of one call. `slow`: takes its time with each piece; `whole_s`: when it had the last byte of an answer."""

    slow: bool
    status: int = 0
    call_id: str = ""
    got: bytearray = field(default_factory=bytearray)
    whole_s: float | None = None
    first_s: float | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def hang_up(self) -> None:
        self._left()

    def begin(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status
        self.call_id = dict(headers).get(b"x-tollway-call", b"").decode()

    def write(self, data: bytes) -> bool:
        if not self.gone:
            self.first_s = asyncio.get_running_loop().time() if self.first_s is None else self.first_s
            self.got += data
        return not self.slow

    async def drained(self) -> None:
        await asyncio.sleep(0.2)

    async def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        self.ended = True
        self.write(data)
        self._over()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        if self.ended:
            return
        self.begin(status, headers)
        await self.end(body)

    def _over(self) -> None:
        self.close()
        if not self.gone:
            self.whole_s = asyncio.get_running_loop().time()
