"""What the experiments stand on: a scripted model server, a gateway in a process of its own, and clients on bare sockets."""
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import psutil
import uvloop

from benchmarks.ports import free_port
from gateway.web.sockets import arrived_s

MODEL = "gpt-5.5"
Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange(asyncio.Protocol):
    """One connection to the scripted server: one request at a time, answered by the bench's handler."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._buffer = bytearray()
        self._wants = 0
        self._raw = b""
        self.gone = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._wants:
            return
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if len(rest) < length:
            self._wants = len(head) + 4 + length
            return
        self._raw, self._buffer, self._wants = rest[:length], bytearray(rest[length:]), 0
        self._bench.seen += 1
        task = asyncio.ensure_future(self._bench.handler(self))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    @property
    def body(self) -> Any:
        """Of the request."""
        return json.loads(self._raw)

    def answer(self, status: int = 200, body: bytes | None = None, headers: bytes = b"") -> None:
        if self.gone.is_set():
            return
        body = ANSWER if body is None else body
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, headers, len(body)) + body)

    async def stream(self, chunks: int, every_s: float, *, ends: bool = True) -> None:
        """Words, a finish, usage, the end marker."""
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(chunks):
            if self.gone.is_set():
                return
            self.chunk(WORD)
            await asyncio.sleep(every_s)
        if ends and not self.gone.is_set():
            self.chunk(FINISH)
            self.transport.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        if not self.gone.is_set():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _chunk(**fields: Any) -> bytes:
    document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **fields}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


_USAGE = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
USED = json.dumps(_USAGE).encode()
"""As it stands in `FINISH`."""
WORD = _chunk(choices=[{"index": 0, "delta": {"content": "toll "}, "finish_reason": None}])
_STOP = _chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
FINISH = _STOP + _chunk(choices=[], usage=_USAGE) + b"data: [DONE]\n\n"
ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "usage": _USAGE,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "toll road"}, "finish_reason": "stop"}],
}).encode()  # fmt: skip


@dataclass
class Got:
    """What a client got. Times are seconds; status 0: no answer."""

    status: int = 0
    took_s: float = 0.0
    waited_s: float = 0.0
    """Of those, from the request written to the answer in the machine: without what the client itself was late."""
    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


async def plain(exchange: Exchange) -> None:
    """Answers at once, as the call asks."""
    if exchange.body.get("stream"):
        await exchange.stream(8, 0.005)
    else:
        exchange.answer()


class Bench:
    """A gateway process in front of the scripted server in this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handler: Handler = plain
        self.seen = 0
        self.port = free_port()
        self.keys: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._server: Any = None

    @staticmethod
    @contextlib.asynccontextmanager
    async def open(
        backends: int = 1, workers: int = 1, teams: Sequence[str] = ("plain",), policy: dict[str, Any] | None = None,
        backend: dict[str, Any] | None = None, **settings: Any,
    ) -> AsyncIterator[Bench]:  # fmt: skip
        """`policy`, `backend`: further fields of each team's file, of each backend; `settings`: of `tollway.yaml`."""
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            try:
                await bench._start(backends, workers, teams, policy or {}, backend or {}, settings)
                yield bench
            finally:
                await asyncio.to_thread(bench.stop)
                bench._server.close()

    async def _start(
        self, backends: int, workers: int, teams: Sequence[str], policy: dict[str, Any], backend: dict[str, Any],
        settings: dict[str, Any],
    ) -> None:  # fmt: skip
        self._server = await asyncio.get_running_loop().create_server(lambda: Exchange(self), "127.0.0.1", 0, backlog=4096)
        mock = self._server.sockets[0].getsockname()[1]
        (self.folder / "teams").mkdir()
        for team in teams:
            rules = {"team": team, "budgets": [{"name": "cap", "limit_usd": 100_000}], **policy}
            (self.folder / "teams" / f"{team}.yaml").write_text(json.dumps(rules))
        described = {
            f"b{n}": {
                "dialect": "openai", "url": f"http://127.0.0.1:{mock}/v1", "provider": "openai", "models": [MODEL], **backend,
            }
            for n in range(backends)
        }
        config = {"backends": described, "data": "data", "policies": "teams", "unready_s": 0, **settings}
        (self.folder / "tollway.yaml").write_text(json.dumps(config))
        argv = ["serve", "--config", str(self.folder / "tollway.yaml"), "--port", str(self.port), "--workers", str(workers)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "gateway.cli", *argv], stdout=log, stderr=log)
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if (await asyncio.to_thread(self._ask, "GET", "/readyz", None)).status_code == 200:
                    break
            await asyncio.sleep(0.05)
        for team in teams:
            made = await self.ask("POST", "/tollway/admin/keys", {"team": team})
            self.keys[team] = made.json()["key"]

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    # looking

    def _ask(self, method: str, path: str, body: Any) -> httpx.Response:
        key = self.folder / "data" / "keys" / "admin"
        headers = {"authorization": f"Bearer {key.read_text().strip()}"} if key.exists() else {}
        return httpx.request(
            method, f"http://127.0.0.1:{self.port}{path}", json=body, headers=headers, timeout=30, trust_env=False, verify=False
        )

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """One request with the admin key."""
        return await asyncio.to_thread(self._ask, method, path, body)

    async def held_nanos(self) -> int:
        return sum(row["held_nanos"] for row in (await self.ask("GET", "/tollway/admin/budgets")).json())

    async def attempts(self) -> dict[str, int]:
        """Booked attempts by status."""
        rows = (await self.ask("GET", "/tollway/usage?by=status")).json()["rows"]
        return {row["status"]: row["attempts"] for row in rows}

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def rss_mib(self) -> float:
        family = [self.process, *self.process.children(recursive=True)]
        return sum(float(one.memory_info().rss) for one in family) / 2**20

    def waited_s(self) -> float:
        """For a core: how long the gateway's loop and this process were ready to run and did not, so far."""
        return sum(_waited_s(pid) for pid in (self.process.pid, os.getpid()))

    def fds(self) -> int:
        return sum(int(one.num_fds()) for one in [self.process, *self.process.children(recursive=True)])

    def cpu_s(self) -> float:
        """Of the gateway so far, in all its processes."""
        times = [one.cpu_times() for one in [self.process, *self.process.children(recursive=True)]]
        return float(sum(each.user + each.system for each in times))

    # calling

    def request(self, team: str = "plain", headers: bytes = b"", **fields: Any) -> bytes:
        asked = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}], **fields}
        body = json.dumps(asked).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (headers, self.keys[team].encode(), len(body), body)
        )

    async def call(self, request: bytes, timeout_s: float = 30.0, address: str = "127.0.0.1") -> Got:
        """One call on a connection of its own."""
        began, got = time.perf_counter(), Got()
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
                try:
                    writer.write(request)
                    written_s = time.monotonic()
                    await read_answer(reader, got)
                    got.waited_s = (arrived_s(writer.get_extra_info("socket")) or time.monotonic()) - written_s
                finally:
                    writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        got.took_s = time.perf_counter() - began
        return got

    def pin(self) -> None:
        """The gateway to the last core, this process with its load and its model server to the others; nothing on one core."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            self.process.cpu_affinity(cores[-1:])
            os.sched_setaffinity(0, cores[:-1])

    async def rate(self, per_s: float, seconds: float, one: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Open loop: starts calls at an even rate, whatever becomes of them."""
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[Any]]()
        began = loop.time()
        for n in range(int(per_s * seconds)):
            await asyncio.sleep(max(began + n / per_s - loop.time(), 0))
            tasks.append(asyncio.ensure_future(one()))
        return list(await asyncio.gather(*tasks))


async def read_answer(reader: asyncio.StreamReader, got: Got) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    got.status = int(first.split(b" ")[1])
    got.headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if b"content-length" in got.headers:
        got.body = await reader.readexactly(int(got.headers[b"content-length"]))
        return
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    got.body = b"".join(parts)


def _waited_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def p99_ms(seconds: Sequence[float]) -> float:
    return (quantiles(seconds, n=100)[98] if len(seconds) > 1 else max(seconds, default=0.0)) * 1e3


def run(scenario: Awaitable[Any]) -> Any:
    """With enough descriptors for thousands of sockets."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def main() -> Any:
        return await scenario

    return uvloop.run(main())

