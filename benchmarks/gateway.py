"""What the gateway adds to a call, against the same calls sent directly to the same mock, in one run.

    python -m benchmarks.gateway [--seconds 3] [--json]

Everything is on: keys, policy, normalization, prefix chain, journal, ledger in SQLite. Mock, gateway and load are three
processes; on a machine with few cores they share them, so read the ratios, and the CPU per call, not the calls per second.
"""
from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import click
import httpx
import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gateway.up import free_port

_TINY = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "Which road has a toll?"}], "max_tokens": 64}
_TOOL = {"type": "function", "function": {"name": "t", "description": "d" * 1200, "parameters": {"type": "object"}}}
_AGENT = {
    **_TINY,
    "tools": [{**_TOOL, "function": {**_TOOL["function"], "name": f"tool_{n}"}} for n in range(20)],  # type: ignore[dict-item]
    "messages": [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "text " * 300} for n in range(60)],
}
SHAPES = {"200-byte call": (_TINY, (1, 16, 64)), "120 kB agent turn": (_AGENT, (1, 16))}


@dataclass(frozen=True)
class Figures:
    """One shape at one concurrency through one door; milliseconds, but for calls per second."""

    shape: str
    door: str
    connections: int
    calls_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms_per_call: float | None


async def _load(port: int, head: bytes, body: bytes, connections: int, seconds: float) -> list[float]:
    """Closed loop over raw sockets; seconds of each call."""
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    until, times = time.perf_counter() + seconds, []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise click.ClickException(f"the benchmark's call failed: {answer[:200]!r}")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*[one() for _ in range(connections)])
    return times


def _measure(shape: str, door: str, port: int, key: str, pid: int | None, n: int, seconds: float) -> Figures:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\n"
    ).encode()
    body = json.dumps(SHAPES[shape][0]).encode()
    uvloop.run(_load(port, head, body, n, 0.3))
    before = _cpu_s(pid)
    times = uvloop.run(_load(port, head, body, n, seconds))
    cpu = None if pid is None else (_cpu_s(pid) - before) / len(times) * 1e3
    cuts = quantiles(times, n=100)
    rate = len(times) / seconds
    return Figures(shape, door, n, rate, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3, cpu)


def _cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def running(folder: Path, mock_port: int) -> Iterator[tuple[int, str, int]]:
    """A gateway in front of a model server on `mock_port`: its port, a key, its process id."""
    port = free_port()
    mock = {"dialect": "openai", "url": f"http://127.0.0.1:{mock_port}/v1", "provider": "openai", "models": ["gpt-5.5"]}
    (folder / "teams").mkdir()
    (folder / "tollway.yaml").write_text(json.dumps({"backends": {"mock": mock}, "data": "data", "policies": "teams"}))
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "serve", "--config", str(folder / "tollway.yaml"), "--port", str(port),
         "--demo-team", "bench"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _await(port)
        yield port, (folder / "data" / "keys" / "demo").read_text().strip(), gateway.pid
    finally:
        gateway.terminate()
        gateway.wait(20)


def run(seconds: float) -> list[Figures]:
    """All shapes, direct and through the gateway, interleaved."""
    mock_port = free_port()
    mock = subprocess.Popen([sys.executable, "-m", "benchmarks.mock", str(mock_port)])
    try:
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), mock_port) as (port, key, pid):
            return _all(mock_port, port, key, pid, seconds)
    finally:
        mock.terminate()
        mock.wait(20)


def _all(mock_port: int, port: int, key: str, pid: int, seconds: float) -> list[Figures]:
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=2 * sum(len(ns) for _, ns in SHAPES.values()))
        for shape, (_, connections) in SHAPES.items():
            for n in connections:
                found.append(_measure(shape, "direct", mock_port, key, None, n, seconds))
                progress.advance(task)
                found.append(_measure(shape, "gateway", port, key, pid, n, seconds))
                progress.advance(task)
    return found


def _await(port: int) -> None:
    for _ in range(400):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise click.ClickException("the gateway did not start")


@click.command()
@click.option("--seconds", default=3.0, show_default=True, help="how long each figure is measured")
@click.option("--json", "as_json", is_flag=True)
def main(seconds: float, as_json: bool) -> None:
    """What the gateway adds to a call."""
    found = run(seconds)
    if as_json:
        click.echo(json.dumps([asdict(figures) for figures in found], indent=1))
        return
    table = Table("shape", "connections", "door", "calls/s", "p50 ms", "p95 ms", "p99 ms", "CPU ms/call")
    for f in found:
        cpu = "" if f.cpu_ms_per_call is None else f"{f.cpu_ms_per_call:.3f}"
        table.add_row(
            f.shape, str(f.connections), f.door, f"{f.calls_per_s:,.0f}", f"{f.p50_ms:.2f}", f"{f.p95_ms:.2f}",
            f"{f.p99_ms:.2f}", cpu,
        )  # fmt: skip
    Console(width=max(Console().width, 120)).print(table)
    click.echo(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
