"""Does the prefix index foresee what the embedded engine will count? Real agent sessions through the gateway to the engine.

    python -m benchmarks.prefix_engine [--sessions FILE] [--calls 60] [--seed 5] [--json]

Turns of several conversations are sent in a mixed order, each turn after the one before it, messages as the client would send
them back, half of the conversations with the engine's own answers in place of the recorded ones. A call is right if the tokens
predicted differ from those that the engine counted as cached by no more than one of its blocks.
"""
from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console
from rich.progress import Progress

from benchmarks.explain import SESSIONS
from benchmarks.gateway import until_answers
from benchmarks.ports import free_port
from inference.blocks import BLOCK

Json = dict[str, Any]
MODEL = "smollm2-135m-instruct"
_TEXT, _MESSAGES = 300, 13


@dataclass
class Call:
    session: str
    turn: int
    predicted: int
    counted: int
    prompt: int

    @property
    def right(self) -> bool:
        return abs(self.predicted - self.counted) <= BLOCK


def _short(message: Json) -> Json:
    """As the small model bears it: roles it knows, texts cut to a few hundred characters."""
    role = "user" if message["role"] in ("user", "tool") else message["role"]
    return {"role": role, "content": str(message.get("content") or "ok")[:_TEXT]}


def _play(client: httpx.Client, sessions: list[Json], calls: int, seed: int, tick: Any) -> list[str]:
    """Sends turns, in an order that hangs on the seed, until there are enough; the ids of the calls in order."""
    rng, ids = random.Random(seed), []
    talks = [[_short(message) for message in session["messages"][:_MESSAGES]] for session in sessions]
    turns = [[n for n in session["turns"] if n <= _MESSAGES] for session in sessions]
    at = [0] * len(sessions)
    while len(ids) < calls and (open_ := [n for n in range(len(sessions)) if at[n] < len(turns[n])]):
        n = rng.choice(open_)
        answer = client.post("/v1/chat/completions", json={
            "model": MODEL, "max_tokens": 20, "temperature": 0, "messages": talks[n][: turns[n][at[n]]],
        })  # fmt: skip
        answer.raise_for_status()
        ids.append(answer.headers["x-tollway-call"])
        end = turns[n][at[n]]
        if n % 2 and end < len(talks[n]):
            talks[n][end] = {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}
        at[n] += 1
        tick()
    return ids


def measure(sessions: list[Json], calls: int, seed: int) -> list[Call]:
    """Starts engine and gateway, plays, and reads what was booked."""
    engine_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        engine = subprocess.Popen(
            [sys.executable, "-m", "inference.server", "--port", str(engine_port), "--threads", "1", "--served-name", MODEL],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert engine.stdout is not None
        if not engine.stdout.readline().startswith(b"ready"):
            raise click.ClickException("the engine did not start")
        (Path(folder) / "teams").mkdir()
        gateway = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "serve", "--data", f"{folder}/data", "--port", str(port),
             "--demo-team", "bench", "--embedded", f"http://127.0.0.1:{engine_port}/v1"], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until_answers(f"http://127.0.0.1:{port}/readyz")
            key = (Path(folder) / "data" / "keys" / "demo").read_text().strip()
            headers = {"authorization": f"Bearer {key}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, trust_env=False) as client, \
                 Progress(console=Console(stderr=True)) as progress:  # fmt: skip
                task = progress.add_task("calls", total=calls)
                ids = _play(client, sessions, calls, seed, lambda: progress.advance(task))
                return [_booked(client, name) for name in ids]
        finally:
            for child in (gateway, engine):
                child.terminate()
                child.wait(30)


def _booked(client: httpx.Client, name: str) -> Call:
    call = client.get(f"/tollway/calls/{name}").raise_for_status().json()
    tokens = call["attempts"][-1]["tokens"]
    read = tokens["cache_read"] or 0
    return Call(name, 0, call["prefix"]["predicted_read"] or 0, read, read + (tokens["uncached"] or 0))


@click.command(help=__doc__)
@click.option("--sessions", type=click.Path(exists=True, path_type=Path), default=SESSIONS, show_default=False)
@click.option("--calls", default=60, show_default=True)
@click.option("--seed", default=5, show_default=True, help="another order of the calls")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(sessions: Path, calls: int, seed: int, as_json: bool) -> None:
    found = measure([json.loads(line) for line in sessions.read_text().splitlines()], calls, seed)
    right = sum(call.right for call in found) / len(found)
    wrong = [f"predicted {c.predicted}, counted {c.counted} of {c.prompt}" for c in found if not c.right]
    totals = {
        "calls": len(found), "within_one_block": right, "predicted_tokens": sum(c.predicted for c in found),
        "counted_tokens": sum(c.counted for c in found), "prompt_tokens": sum(c.prompt for c in found), "wrong": wrong,
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(totals, indent=2))
        return
    for line in wrong:
        click.echo(line)
    sums = "{predicted_tokens:,} predicted, {counted_tokens:,} counted of {prompt_tokens:,}".format(**totals)
    click.echo(f"{len(found)} calls, {right:.1%} predicted within one block of {BLOCK} tokens; {sums}")


if __name__ == "__main__":
    main()
