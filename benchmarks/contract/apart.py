"""C21's timing: whether one team can tell by the clock what another has sent.

Pairs of calls of one team: a prompt that the other team has sent just before, and one that nobody has. Their times must not be
told apart (Kolmogorov-Smirnov, p > 0.01). A prompt of one's own must be: else the experiment would see nothing. Beside the
clock stands what was worked: prompt tokens that the engine says it read from its cache, and the gateway's own time on the core,
which other work on the machine does not change.
"""
from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from math import exp, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
import uvicorn

from benchmarks.contract import Reached, Scale, experiment
from benchmarks.contract.bench import MODEL, Bench, Got, run
from benchmarks.contract.money import scenarios
from benchmarks.ports import free_port
from inference.app import App, Served
from inference.engine import Engine
from inference.http import Protocol
from inference.storage import Storage
from tests.inference.tiny import model, tokenizer
from tests.upstream import until

TEAMS = ("victim", "curious")
LEAST_P, SURE_P = 0.01, 1e-6
_CONTROLS = 200
_ENGINE_CHARS, _GATEWAY_MESSAGES = 300, 60


Prompt = Callable[[], list[dict[str, str]]]
"""Makes one that nobody has sent."""


class Cost(NamedTuple):
    """What one call took: by the clock, and on the gateway's core."""

    clock_s: float
    core_s: float
    cached_tokens: int


def ks(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sample Kolmogorov-Smirnov: the chance of a distance as great where both are the same (asymptotic)."""
    steps = sorted([(x, 1 / len(one)) for x in one] + [(x, -1 / len(other)) for x in other])
    distance = height = 0.0
    for n, (x, step) in enumerate(steps):
        height += step
        if n + 1 == len(steps) or steps[n + 1][0] != x:
            distance = max(distance, abs(height))
    root = sqrt(len(one) * len(other) / (len(one) + len(other)))
    reach = (root + 0.12 + 0.11 / root) * distance
    if reach < 0.2:                                 # the series does not end there
        return 1.0
    return min(max(2 * sum((-1) ** (k - 1) * exp(-2 * (k * reach) ** 2) for k in range(1, 101)), 0.0), 1.0)


@experiment("C21")
def apart(scale: Scale) -> Reached:
    """Canaries and salts by the suite's scenarios; then the clock: an own engine, and the gateway alone with long prompts."""
    pairs = int(scale.of(300, 1_000))
    told = scenarios(
        "C21", "", "tests/flow/test_canaries.py", "tests/inference/test_blocks.py", "tests/prefix/test_history.py"
    )  # fmt: skip
    with _engine() as url:
        engine, engine_kept = run(_timed(pairs, _short, {"url": f"{url}/v1", "engine": "embedded", "cache_salt": True}))
    front, front_kept = run(_timed(pairs, _long, {}))
    figure = f"{told.figure}; own engine: {engine}; the gateway alone: {front}"
    done = f"canaries by every path, salts; {pairs} pairs of each kind, own engine with a model of two layers"
    return Reached(figure, told.kept and engine_kept and front_kept, done)


async def _timed(pairs: int, prompt: Prompt, backend: dict[str, Any]) -> tuple[str, bool]:
    """The figure, and whether another team's prompts cannot be told while one's own can."""
    async with Bench.open(teams=TEAMS, policy={"cache": {"hold_out": 0}}, backend=backend) as bench:
        for _ in range(20):                             # what is loaded at first sight is there
            for team in TEAMS:
                await _call(bench, team, prompt())
        others = [await _pair(bench, "victim", prompt) for _ in range(pairs)]
        own = [await _pair(bench, "curious", prompt) for _ in range(_CONTROLS)]
    shared = sum(seen.cached_tokens > fresh.cached_tokens for seen, fresh in others)
    clock, core = _p(others)
    control = min(_p(own))
    figure = f"p {clock:.2g} by the clock, {core:.2g} by the core, {shared} shared hits (own prompts: p {control:.0e})"
    return figure, control < SURE_P and not shared and min(clock, core) > LEAST_P


async def _pair(bench: Bench, first: str, prompt: Prompt) -> tuple[Cost, Cost]:
    """Of a prompt that team `first` has just sent, and of one that is new, in either order."""
    seen, fresh = prompt(), prompt()
    await _call(bench, first, seen)
    if random.random() < 0.5:
        return await _call(bench, "curious", seen), await _call(bench, "curious", fresh)
    late = await _call(bench, "curious", fresh)
    return await _call(bench, "curious", seen), late


def _p(pairs: Sequence[tuple[Cost, Cost]]) -> tuple[float, float]:
    """By the clock, and by the core."""
    clock, core = (ks([seen[n] for seen, _ in pairs], [fresh[n] for _, fresh in pairs]) for n in (0, 1))
    return clock, core


async def _call(bench: Bench, team: str, messages: list[dict[str, str]]) -> Cost:
    before_s = _core_s(bench)
    got = await bench.call(bench.request(team, messages=messages, max_tokens=1))
    assert got.status == 200, got
    return Cost(got.took_s, _core_s(bench) - before_s, _cached(got))


def _core_s(bench: Bench) -> float:
    """Time that the gateway's loop has spent on a core, to the nanosecond."""
    pid = bench.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _cached(got: Got) -> int:
    words = dict(pair.split("=") for pair in got.headers.get(b"x-tollway-tokens", b"").decode().split(",") if pair)
    return int(words.get("cached") or 0)


def _short() -> list[dict[str, str]]:
    """As long as the tiny model bears."""
    return [{"role": "user", "content": random.randbytes(_ENGINE_CHARS // 2).hex()}]


def _long() -> list[dict[str, str]]:
    """A conversation of some 60 kB; no two have a message in common."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": random.randbytes(500).hex()} for n in range(_GATEWAY_MESSAGES + 1)]


@contextlib.contextmanager
def _engine() -> Iterator[str]:
    """The embedded engine with a model of two layers, behind its own HTTP face, in a thread of this process."""
    engine = Engine(model("fp32"), tokenizer(), Storage(model("fp32"), 65_536, torch.float32), threads=1)
    engine.start()
    port = free_port()
    app = App(Served(engine, MODEL, "f", 0, {}))
    server = uvicorn.Server(uvicorn.Config(app, port=port, http=Protocol, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the engine's server")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.force_exit = server.should_exit = True
        thread.join(20)
        engine.stop()
