"""The embedded engine through its own HTTP server: prefill, decode, cached first token.

    python -m benchmarks.engine [--threads N] [--json]
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid

import click
import httpx
from rich.console import Console
from rich.table import Table

_MODEL = "smollm2-135m-instruct"


def _ask(url: str, prompt: str, tokens: int, tier: str = "default") -> tuple[float, dict[str, int]]:
    began = time.perf_counter()
    body = {
        "model": _MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0,
        "service_tier": tier,
    }  # fmt: skip
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    answer.raise_for_status()
    return time.perf_counter() - began, answer.json()["usage"]


def _fresh(words: int) -> str:
    """A prompt that no cache knows, of about `words` tokens."""
    return f"{uuid.uuid4()} " + "road " * words + "\nWrite a long story about this road."


def run(url: str) -> dict[str, float]:
    """Tokens per second, and seconds for the first token."""
    found = {}
    for size in (512, 2048):
        seconds, usage = _ask(url, prompt := _fresh(size), 1)
        found[f"prefill of {size}, tokens/s"] = usage["prompt_tokens"] / seconds
        again, _ = _ask(url, prompt, 1)
        found[f"first token with {size} cached, share of cold"] = again / seconds
    for tier in ("default", "priority"):
        _ask(url, prompt := _fresh(64), 1, tier)
        seconds, usage = _ask(url, prompt, 96, tier)
        found[f"decode alone, {tier}, tokens/s"] = usage["completion_tokens"] / seconds
    began, done = time.perf_counter(), []
    threads = [threading.Thread(target=lambda: done.append(_ask(url, _fresh(64), 64)[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["decode of 8 at once, prompts included, tokens/s"] = sum(u["completion_tokens"] for u in done) / (
        time.perf_counter() - began
    )
    return found


@click.command()
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(threads: int, as_json: bool) -> None:
    """The embedded engine's speed on this machine."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "inference.server", "--port", "0", "--threads", str(threads)]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert engine.stdout is not None
    try:
        url = engine.stdout.readline().split()[-1]
        found = {"start, s": time.perf_counter() - began, **run(url)}
    finally:
        engine.terminate()
        engine.wait(20)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    table = Table("figure", "value")
    for name, value in found.items():
        table.add_row(name, f"{value:,.3g}")
    Console(width=max(Console().width, 120)).print(table)
    click.echo(f"{threads} threads, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
