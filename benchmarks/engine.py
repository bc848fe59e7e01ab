"""The embedded engine through its own HTTP server, beside transformers and llama.cpp on the same weights in the same run.

    python -m benchmarks.engine [--threads 2] [--rounds 3] [--peers .venv-peers] [--only decode] [--json]

Rounds go engine by engine and the best of each figure counts: what disturbs a shared machine only ever slows it down.
`make peers` builds the environment of the others; one that is not there is left out of the table.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console
from rich.table import Table

_MODEL = "smollm2-135m-instruct"
_ROOT = Path(__file__).parent.parent
_VOCABULARY, _CHANCE = 40_000, random.Random(7)
_REPEATS = 3  # of eight at once, with the server and without: a difference of some percent takes more tries than a ratio
_GAP = "p99 gap beside a long prompt / (chunk + 2 steps)"
_TF, _TF32, _CPP, _BARE = "transformers bf16", "transformers fp32", "llama.cpp", "bare"
COPY = "Repeat this file word for word.\n" + "".join(
    f"def handler_{n}(request):\n    return respond(request, status={200 + n})\n\n" for n in range(12)
)
EXTRACT = "Write down every line that holds ERROR.\n" + "".join(
    f"2026-11-{n:02d} 10:00:{n:02d} {'ERROR disk full' if n % 2 else 'INFO all fine'} on node {n}\n" for n in range(1, 28)
)
CHAT = "Explain to a child why the sky is blue and why sunsets are red."


@dataclass
class Figures:
    """Best of all rounds: name of the figure -> engine -> value."""

    best: dict[str, dict[str, float]] = field(default_factory=dict)

    def note(self, figure: str, engine: str, value: float, *, least: bool = False) -> None:
        row = self.best.setdefault(figure, {})
        row[engine] = (min if least else max)(row.get(engine, value), value)

    def of(self, figure: str, engine: str) -> float | None:
        return self.best.get(figure, {}).get(engine)

    def ratio(self, figure: str, of: str, to: str) -> float | None:
        ours, theirs = self.of(figure, of), self.of(figure, to)
        return ours / theirs if ours is not None and theirs else None


def _ids(count: int) -> list[int]:
    """A prompt that no cache knows."""
    return [_CHANCE.randrange(100, _VOCABULARY) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Told:
    """One streamed answer: when it was asked for, when each token came, and its usage."""

    asked: float
    times: tuple[float, ...]
    usage: dict[str, Any]

    @property
    def first(self) -> float:
        return self.times[0] - self.asked

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return float(self.usage["completion_tokens"] - 1) / (self.times[-1] - self.times[0])

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


@dataclass(frozen=True, slots=True)
class Asked:
    """A completion of ids, or a chat of text, to be streamed."""

    prompt: Sequence[int] | str
    tokens: int
    tier: str = "default"

    def request(self, address: str) -> bytes:
        """The bytes to send."""
        body: dict[str, Any] = {
            "model": _MODEL, "max_tokens": self.tokens, "stream": True, "ignore_eos": True, "service_tier": self.tier,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if isinstance(self.prompt, str):
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            path = "/v1/completions"
            body["prompt"] = list(self.prompt)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
        return head.encode() + data


def ask(url: str, prompt: Sequence[int] | str, tokens: int, tier: str = "default") -> Told:
    """Stream one answer."""
    return at_once(url, [Asked(prompt, tokens, tier)])[0]


def at_once(url: str, asked: Sequence[Asked]) -> list[Told]:
    """Stream all answers at once. One thread reads bare sockets: on a small machine the reader takes from the engine's time."""
    address = url.removeprefix("http://")
    host, port = address.rsplit(":", 1)
    requests = [each.request(address) for each in asked]
    arrived: list[list[tuple[float, bytes]]] = [[] for _ in asked]
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        began = time.perf_counter()
        for index, request in enumerate(requests):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 600))
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ, index)
        while selector.get_map():
            for key, _ in selector.select():
                part = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                arrived[key.data].append((time.perf_counter(), part))
                if not part:
                    selector.unregister(key.fileobj)
    return [_told(began, parts) for parts in arrived]


def _told(asked: float, parts: Sequence[tuple[float, bytes]]) -> Told:
    whole = b"".join(part for _, part in parts)
    if b" 200 " not in whole[:16]:
        raise click.ClickException(f"the engine answered {whole[:300]!r}")
    times = [at for at, part in parts for _ in range(part.count(b"data: {"))]
    usage = json.loads(whole[whole.rindex(b'"usage":{') + 8 :].partition(b"}}")[0] + b"}}")
    return Told(asked, tuple(times[:-1]), usage)


def decode(url: str, count: int, tokens: int) -> float:
    """Tokens per second of `count` answers at once, prompts of 128 cached before; the time in which all of them run counts."""
    prompts = [_ids(128) for _ in range(count)]
    for prompt in prompts:
        ask(url, prompt, 1)
    told = at_once(url, [Asked(prompt, tokens) for prompt in prompts])
    start, end = max(t.times[0] for t in told), min(t.times[-1] for t in told)
    together = [[at for at in t.times if start <= at <= end] for t in told]
    return sum((len(times) - 1) / (times[-1] - times[0]) for times in together)  # each from a token of its own to another


def ours(url: str, figures: Figures, only: str) -> None:
    """One round of our own server."""
    if only in "decode":
        figures.note("decode 1", "ours", decode(url, 1, 48))
        for _ in range(_REPEATS):
            figures.note("decode 8", "ours", decode(url, 8, 32))
    if only in "prefill":
        for size in (512, 2048):
            figures.note(f"prefill {size}", "ours", size / ask(url, _ids(size), 1).first)
        head = _ids(1984)
        cold, warm = ask(url, head + _ids(64), 1).first, ask(url, head + _ids(64), 1)
        assert warm.cached == 1984, warm.cached
        figures.note("first token, 97 % of 2,048 cached, share of cold", "ours", warm.first / cold, least=True)
    if only in "lanes":
        for name, prompt in (("copy", COPY), ("extract", EXTRACT), ("chat", CHAT)):
            ask(url, prompt, 1)
            rates = {tier: ask(url, prompt, 128, tier).rate for tier in ("default", "priority")}
            figures.note(f"fast over standard, {name}", "ours", rates["priority"] / rates["default"])
    if only in "gap":
        gap(url, figures)
    if only in "count":
        count(url, figures)


def gap(url: str, figures: Figures) -> None:
    """Four answers run; a prompt of 2,048 comes: their 99th percentile of gaps, over a chunk and two quiet steps.

    Each step gives each answer a token, so the median gap while it is computed is a chunk and a step.
    """
    told: list[Told] = []
    prompts = [_ids(64) for _ in range(4)]
    for prompt in prompts:
        ask(url, prompt, 1)
    runner = threading.Thread(target=lambda: told.extend(at_once(url, [Asked(prompt, 300) for prompt in prompts])))
    runner.start()
    time.sleep(0.5)
    long = ask(url, _ids(2048), 1)
    runner.join()
    quiet, busy = [], []
    for t in told:
        for before, after in zip(t.times, t.times[1:], strict=False):
            (busy if before < long.times[0] and after > long.asked else quiet).append(after - before)
    step = sorted(quiet)[len(quiet) // 2]
    chunk = sorted(busy)[len(busy) // 2] - step
    worst = sorted(busy)[int(len(busy) * 0.99)]
    click.echo(f"  quiet step {step * 1e3:.1f} ms, chunk {chunk * 1e3:.1f}, p99 gap {worst * 1e3:.1f}", err=True)
    figures.note(_GAP, "ours", worst / (chunk + 2 * step), least=True)


def count(url: str, figures: Figures) -> None:
    """Prompt tokens reported as not cached, over prompt rows that were really computed: 1 where the count is exact."""
    before, shared = _rows(url), _ids(300)
    told = [ask(url, shared[: 40 * n] + _ids(30), 2) for n in range(1, 8)]
    reported = sum(t.usage["prompt_tokens"] - t.cached for t in told)
    figures.note("prompt tokens reported uncached / rows computed", "ours", reported / (_rows(url) - before))


def _rows(url: str) -> float:
    return _metric(url, 'computed_rows_total{model_name="' + _MODEL + '",kind="prefill"}')


def _metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"tollway_engine:{name}"))


class Peer:
    """A process of `benchmarks.peers`."""

    def __init__(self, name: str, python: str, threads: int) -> None:
        self.name = name
        environment = os.environ | {"PYTHONPATH": str(_ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [python, "-m", "benchmarks.peers", name, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.ready = "ready" in self._read()

    def run(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in found:
            click.echo(f"{self.name} is left out: {found['error']}", err=True)
        return found


def theirs(peer: Peer, figures: Figures, only: str) -> None:
    """One round of a peer, on prompts of the same sizes."""
    if only in "decode":
        repeats = _REPEATS if peer.name == _BARE else 1
        for many, tokens in ((1, 48), *((8, 32),) * repeats):
            seconds = peer.run([_ids(128) for _ in range(many)], tokens)["decode"]
            figures.note(f"decode {many}", peer.name, many * tokens / seconds)
    if only in "prefill":
        for size in (512, 2048):
            figures.note(f"prefill {size}", peer.name, size / peer.run([_ids(size)], 0)["prefill"])


@contextmanager
def server(threads: int, *options: str) -> Iterator[str]:
    """Our server as its users start it."""
    command = [sys.executable, "-m", "inference.server", "--port", "0", "--threads", str(threads), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(20)


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the table: what is reached, and what should be."""

    name: str
    reached: Callable[[Figures], float | None]
    must: float
    aim: float
    less_is_better: bool = False


def _over(figure: str, peer: str) -> Callable[[Figures], float | None]:
    return lambda figures: figures.ratio(figure, "ours", peer)


def _just(figure: str) -> Callable[[Figures], float | None]:
    return lambda figures: figures.of(figure, "ours")


def _around(figures: Figures) -> float | None:
    """Share of the time at eight that is not the bare model's."""
    share = figures.ratio("decode 8", "ours", _BARE)
    return None if share is None else max(0.0, 1 - share)


GOALS = (
    Goal("decode one / transformers bf16", _over("decode 1", _TF), 3.0, 4.0),
    Goal("decode one / llama.cpp", _over("decode 1", _CPP), 0.6, 1.0),
    Goal("decode eight / transformers bf16", _over("decode 8", _TF), 2.2, 3.0),
    Goal("decode eight / llama.cpp", _over("decode 8", _CPP), 1.2, 1.6),
    Goal("prefill 512 / transformers bf16", _over("prefill 512", _TF), 0.95, 1.2),
    Goal("prefill 2,048 / transformers bf16", _over("prefill 2048", _TF), 0.95, 1.2),
    Goal("prefill 512 / transformers fp32", _over("prefill 512", _TF32), 0.95, 1.2),
    Goal("prefill 2,048 / transformers fp32", _over("prefill 2048", _TF32), 0.95, 1.2),
    Goal("prefill 512 / llama.cpp", _over("prefill 512", _CPP), 2.5, 3.0),
    Goal("prefill 2,048 / llama.cpp", _over("prefill 2048", _CPP), 2.5, 3.0),
    Goal("first token with 97 % cached / cold", _just("first token, 97 % of 2,048 cached, share of cold"), 0.08, 0.05, True),
    Goal("scheduler and server, share of a step at eight", _around, 0.08, 0.04, True),
    Goal("fast lane / standard, copy", _just("fast over standard, copy"), 1.5, 2.2),
    Goal("fast lane / standard, extraction", _just("fast over standard, extract"), 1.5, 2.2),
    Goal("fast lane / standard, chat", _just("fast over standard, chat"), 0.97, 1.0),
    Goal(_GAP, _just(_GAP), 1.0, 0.9, True),
    Goal("tokens reported uncached / rows computed", _just("prompt tokens reported uncached / rows computed"), 1.0, 1.0),
)  # fmt: skip


@click.command()
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--peers", default=str(_ROOT / ".venv-peers"), show_default=True, help="environment made by `make peers`")
@click.option("--only", type=click.Choice(["decode", "prefill", "lanes", "gap", "count"]), help="one group of figures")
@click.option("--json", "as_json", is_flag=True)
def main(threads: int, rounds: int, peers: str, only: str | None, as_json: bool) -> None:
    """The embedded engine's speed beside its peers, on this machine, in one run."""
    figures, began = Figures(), os.getloadavg()[0]
    with ExitStack() as stack:
        others = []
        for name in (_BARE, _CPP, _TF, _TF32) if only in (None, "decode", "prefill") else ():
            python = sys.executable if name == _BARE else f"{peers}/bin/python"
            if Path(python).exists():
                others.append(peer := Peer(name, python, threads))
                stack.callback(peer.stop)
        url = stack.enter_context(server(threads))
        facts = httpx.get(f"{url}/health").json()
        for round_ in range(1, rounds + 1):
            click.echo(f"round {round_} of {rounds}", err=True)
            ours(url, figures, only or "")
            for peer in others:
                if peer.ready:
                    theirs(peer, figures, only or "")
            for figure, row in figures.best.items():
                click.echo(f"  {figure}: " + ", ".join(f"{name} {value:.3g}" for name, value in row.items()), err=True)
    if as_json:
        reached = {goal.name: goal.reached(figures) for goal in GOALS}
        click.echo(json.dumps({"figures": figures.best, "reached": reached, "weights": facts["weights"]}, indent=1))
    else:
        _print(figures, Console(width=max(Console().width, 132)))
        click.echo(
            f"weights {facts['weights']}, {'exact' if facts['exact'] else 'not exact'}; {threads} threads; "
            f"load average {began:.1f} before, {os.getloadavg()[0]:.1f} after"
        )


def _print(figures: Figures, console: Console) -> None:
    engines = ["ours", _BARE, _CPP, _TF, _TF32]
    table = Table("tokens/s, best round", *engines)
    for figure, row in figures.best.items():
        if len(row) > 1:
            table.add_row(figure, *(f"{row[e]:,.1f}" if e in row else "-" for e in engines))
    console.print(table)
    table = Table("figure", "reached", "must", "aim", "")
    for goal in GOALS:
        value = goal.reached(figures)
        if value is None:
            table.add_row(goal.name, "-", f"{goal.must:g}", f"{goal.aim:g}", "not measured")
            continue
        sign = -1 if goal.less_is_better else 1
        verdict = "aim" if sign * value >= sign * goal.aim else "must" if sign * value >= sign * goal.must else "missed"
        table.add_row(goal.name, f"{value:.3g}", f"{goal.must:g}", f"{goal.aim:g}", verdict)
    console.print(table)


if __name__ == "__main__":
    main()
