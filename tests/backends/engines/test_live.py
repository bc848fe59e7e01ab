"""llama.cpp's real server under the adapter: its figures, its cached tokens, its answer to a call."""
from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.backends.engines import ENGINES
from gateway.backends.engines.watch import Fetch, Watch, probe

LLAMACPP, PYTHON = ENGINES["llama.cpp"], os.environ.get("TOLLWAY_CLIENTS_PYTHON")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    weights = pytest.importorskip("inference.weights")
    if not PYTHON or subprocess.run([PYTHON, "-c", "import xllamacpp"], capture_output=True, check=False).returncode:
        pytest.skip("no llama.cpp in TOLLWAY_CLIENTS_PYTHON; `make test` sets it up")
    command = [PYTHON, Path(__file__).with_name("llamacpp_server.py"), weights.bundled_model()]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        yield next(line.split()[1] for line in server.stdout if line.startswith("ready"))
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


def _over(client: httpx.AsyncClient) -> Fetch:
    async def fetch(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        answer = await client.request(method, path, content=body)
        return answer.status_code, answer.content

    return fetch


async def test_its_figures_are_read(url: str) -> None:
    """Idle it says so; while an answer runs one slot is busy and holds tokens; the probe finds cached tokens told."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        watch = Watch(engine=LLAMACPP, fetch=_over(client), every_s=60.0)
        await watch.look()
        assert (idle := watch.load()) is not None
        assert (idle.running, idle.waiting, idle.kv_used) == (0, 0, 0.0)
        body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 400}
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body | {"ignore_eos": True}))
        busy = 0
        while not running.done() and not busy:
            await watch.look()
            load = watch.load()
            busy = load.running or 0 if load is not None else 0
        assert busy == 1
        running.cancel()
        can = await probe(LLAMACPP, _over(client), "any")
        assert (can.cached_tokens, can.priority, can.salt, can.load) == (True, False, False, True)
