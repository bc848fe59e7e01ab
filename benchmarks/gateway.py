"""What the gateway adds to a call, against the same calls sent directly and through nginx, in one run.

    python -m benchmarks.gateway [--seconds 3] [--durability process|power] [--workers N] [--soak 20000] [--json]

Everything is on: keys, policy, normalization, prefix chain, holds (a budget), journal, ledger in SQLite. With one worker the
gateway (and nginx) is pinned to the first core, mock and load to the last. Absolute figures say little about another machine:
read the ratios to nginx, and the CPU per call. nginx is left out where it is not installed.
"""
from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import httpx
import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.ports import free_port

_TINY = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "Which road has a toll?"}], "max_tokens": 64}
_TOOL = {"type": "function", "function": {"name": "t", "description": "d" * 1200, "parameters": {"type": "object"}}}
_AGENT = {
    **_TINY,
    "tools": [{**_TOOL, "function": {**_TOOL["function"], "name": f"tool_{n}"}} for n in range(20)],  # type: ignore[dict-item]
    "messages": [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "text " * 300} for n in range(60)],
}
_LONG = {**_TINY, "messages": [{"role": "user", "content": "word " * 200_000}]}
_STREAM = {**_TINY, "stream": True, "stream_options": {"include_usage": True}}
SHAPES = {
    "200-byte call": (_TINY, (1, 16, 64, 256)),
    "120 kB agent turn": (_AGENT, (1, 16)),
    "1 MB body": (_LONG, (8,)),
    "stream of 64 chunks": (_STREAM, (1, 64)),
}
_NGINX = """
worker_processes {workers}; daemon off; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 2m; client_body_temp_path {folder};
  proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  keepalive_requests 10000000;
  upstream mock {{ server 127.0.0.1:{mock}; keepalive 512; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""


@dataclass(frozen=True)
class Figures:
    """One shape at one concurrency through one door. Times are milliseconds; of a stream, `p..` are its first chunk's and
    `relay_..` those from the mock's writing of a chunk to its arrival."""

    shape: str
    door: str
    connections: int
    calls_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms_per_call: float | None
    relay_p50_ms: float | None = None
    relay_p99_ms: float | None = None


@dataclass(frozen=True)
class Door:
    """Where calls go in; `pid`: whose CPU is counted, children and all."""

    name: str
    port: int
    key: str = "none"
    pid: int | None = None

    def cpu_s(self) -> float:
        if self.pid is None:
            return 0.0
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def rss_mib(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 2**20


class _Times:
    """Seconds to the whole answer or a stream's first chunk, and of each chunk's way."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.relays: list[float] = []


async def _whole(reader: asyncio.StreamReader, began: float, times: _Times) -> None:
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise click.ClickException(f"the benchmark's call failed: {answer[:200]!r}")
    length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    times.answers.append(time.perf_counter() - began)


async def _streamed(reader: asyncio.StreamReader, began: float, times: _Times) -> None:
    got, first = b"", True
    while b"0\r\n\r\n" not in got[-7:]:
        piece = await reader.read(65_536)
        now_ns = time.monotonic_ns()
        if not piece or (first and not piece.startswith(b"HTTP/1.1 200")):
            raise click.ClickException(f"the benchmark's stream failed: {(got + piece)[:200]!r}")
        if first:
            times.answers.append(time.perf_counter() - began)
            first = False
        stamps = piece.split(b'"content":"')[1:]
        times.relays += [(now_ns - int(stamp[: stamp.index(b" ")])) / 1e9 for stamp in stamps if b" " in stamp[:24]]
        got = piece[-16:] if len(piece) > 16 else got + piece


async def _load(door: Door, body: dict[str, Any], connections: int, seconds: float) -> _Times:
    """Closed loop over raw sockets."""
    data = json.dumps(body).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{door.port}\r\nauthorization: Bearer {door.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    ).encode() + data
    read, times, until = (_streamed if body.get("stream") else _whole), _Times(), time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(request)
            await read(reader, began, times)
        writer.close()

    await asyncio.gather(*[one() for _ in range(connections)])
    return times


def _measure(shape: str, door: Door, n: int, seconds: float) -> Figures:
    body = SHAPES[shape][0]
    uvloop.run(_load(door, body, n, 0.3))
    before = door.cpu_s()
    times = uvloop.run(_load(door, body, n, seconds))
    cpu = None if door.pid is None else (door.cpu_s() - before) / len(times.answers) * 1e3
    cuts = _cuts_ms(times.answers)
    relays = _cuts_ms(times.relays) if times.relays else None
    return Figures(
        shape, door.name, n, len(times.answers) / seconds, cuts[49], cuts[94], cuts[98], cpu,
        relays and relays[49], relays and relays[98],
    )  # fmt: skip


def _cuts_ms(seconds: list[float]) -> list[float]:
    return [cut * 1e3 for cut in quantiles(seconds if len(seconds) > 1 else seconds * 2, n=100)]


def _pinned(command: list[str], core: int | None) -> list[str]:
    return command if core is None or not shutil.which("taskset") else ["taskset", "-c", str(core), *command]


@contextmanager
def running(
    folder: Path, mock_port: int, *, durability: str = "power", workers: int = 1, core: int | None = None
) -> Iterator[Door]:
    """A gateway in front of a model server on `mock_port`."""
    port = free_port()
    mock = {"dialect": "openai", "url": f"http://127.0.0.1:{mock_port}/v1", "provider": "openai", "models": ["gpt-5.5"]}
    (folder / "teams").mkdir()
    policy = {"team": "bench", "budgets": [{"name": "plenty", "limit_usd": "1000000"}]}
    (folder / "teams" / "bench.yaml").write_text(json.dumps(policy))
    settings = {"backends": {"mock": mock}, "data": "data", "policies": "teams", "durability": durability}
    (folder / "tollway.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(folder / "tollway.yaml"), "--port", str(port),
               "--demo-team", "bench", "--workers", str(workers)]  # fmt: skip
    gateway = subprocess.Popen(_pinned(command, core), stderr=subprocess.DEVNULL)
    try:
        until_answers(f"http://127.0.0.1:{port}/readyz")
        yield Door("gateway", port, (folder / "data" / "keys" / "demo").read_text().strip(), gateway.pid)
    finally:
        gateway.terminate()
        gateway.wait(20)


@contextmanager
def nginx(folder: Path, mock_port: int, *, workers: int, core: int | None) -> Iterator[Door | None]:
    """A plain proxy with connections kept, nothing buffered; None where there is no nginx."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        yield None
        return
    port, config = free_port(), folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, mock=mock_port, workers=workers))
    process = subprocess.Popen(_pinned([program, "-c", str(config), "-p", str(folder)], core), stderr=subprocess.DEVNULL)
    try:
        until_answers(f"http://127.0.0.1:{port}/", whatever=True)
        yield Door("nginx", port, pid=process.pid)
    finally:
        process.terminate()
        process.wait(20)


def run(seconds: float, durability: str, workers: int, soak: int, shapes: tuple[str, ...]) -> tuple[list[Figures], list[float]]:
    """All shapes through all doors, interleaved; and the gateway's MiB before and after `soak` small calls."""
    first, last = (0, (os.cpu_count() or 1) - 1) if workers == 1 and (os.cpu_count() or 1) > 1 else (None, None)
    if last is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {last})
    mock_port = free_port()
    with ExitStack() as stack:
        mock = subprocess.Popen([sys.executable, "-m", "benchmarks.mock", str(mock_port)])
        stack.callback(mock.wait, 20)
        stack.callback(mock.terminate)
        for name in ("nginx", "gateway"):
            (folder := Path(stack.enter_context(tempfile.TemporaryDirectory())) / name).mkdir(mode=0o755)
            if name == "nginx":
                folder.parent.chmod(0o755)
                other = stack.enter_context(nginx(folder, mock_port, workers=workers, core=first))
            else:
                ours = stack.enter_context(running(folder, mock_port, durability=durability, workers=workers, core=first))
        doors = [Door("direct", mock_port), *([other] if other else []), ours]
        memory = [ours.rss_mib()]
        found = _all(doors, seconds, shapes)
        if soak:
            uvloop.run(_soaked(ours, soak))
            memory.append(ours.rss_mib())
    return found, memory


def _all(doors: list[Door], seconds: float, shapes: tuple[str, ...]) -> list[Figures]:
    cases = [(shape, n, door) for shape in shapes for n in SHAPES[shape][1] for door in doors]
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        for shape, n, door in progress.track(cases, description="measuring"):
            found.append(_measure(shape, door, n, seconds))
    return found


async def _soaked(door: Door, calls: int) -> None:
    done = 0
    while done < calls:
        done += len((await _load(door, _TINY, 64, 1.0)).answers)


def until_answers(url: str, *, whatever: bool = False) -> None:
    for _ in range(400):
        try:
            if httpx.get(url).status_code == 200 or whatever:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise click.ClickException(f"nothing answers at {url}")


def _table(found: list[Figures]) -> Table:
    names = ("shape", "connections", "door", "calls/s", "of nginx", "p50 ms", "p95 ms", "p99 ms", "CPU ms/call")
    table = Table(*names, "relay p50/p99 ms")
    base = {(f.shape, f.connections): f.calls_per_s for f in found if f.door == "nginx"}
    for f in found:
        share = f.calls_per_s / base[f.shape, f.connections] if (f.shape, f.connections) in base else None
        relay = "" if f.relay_p50_ms is None else f"{f.relay_p50_ms:.2f} / {f.relay_p99_ms:.2f}"
        table.add_row(
            f.shape, str(f.connections), f.door, f"{f.calls_per_s:,.0f}", _shown(share), f"{f.p50_ms:.2f}", f"{f.p95_ms:.2f}",
            f"{f.p99_ms:.2f}", _shown(f.cpu_ms_per_call), relay,
        )  # fmt: skip
    return table


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


@click.command()
@click.option("--seconds", default=3.0, show_default=True, help="how long each figure is measured")
@click.option("--durability", type=click.Choice(["process", "power"]), default="process", show_default=True)
@click.option("--workers", default=1, show_default=True, help="more than one: nothing is pinned")
@click.option("--soak", default=0, show_default=True, help="small calls at the end, to see memory grow or not")
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), help="only these")
@click.option("--json", "as_json", is_flag=True)
def main(seconds: float, durability: str, workers: int, soak: int, shapes: tuple[str, ...], as_json: bool) -> None:
    """What the gateway adds to a call."""
    found, memory = run(seconds, durability, workers, soak, shapes or tuple(SHAPES))
    if as_json:
        click.echo(json.dumps({"figures": [asdict(figures) for figures in found], "rss_mib": memory}, indent=1))
        return
    Console(width=max(Console().width, 140)).print(_table(found))
    click.echo(f"gateway's memory, MiB: {', '.join(f'{mib:.0f}' for mib in memory)}")
    click.echo(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, durability {durability}")


if __name__ == "__main__":
    main()
