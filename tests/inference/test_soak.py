"""Full load with hang-ups on the real server: afterwards blocks, requests, threads, files and memory are what they were.

Memory is never more than weights, cache and 350 MiB.

15 seconds here; TOLLWAY_SOAK_S=1800 makes it half an hour.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.inference.conftest import start_server
from tests.inference.test_server import MODEL

SOAK_S = float(os.environ.get("TOLLWAY_SOAK_S", "15"))
KV_TOKENS = 8_192
_SLACK_MIB, _BESIDE_MIB = 48, 350
pytestmark = pytest.mark.timeout(SOAK_S + 600)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def _body(chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL, "max_tokens": chance.choice((1, 8, 60)), "stream": chance.random() < 0.7,
        "service_tier": chance.choice(("default", "priority")), "cache_salt": chance.choice("abc"),
        "messages": [{"role": "user", "content": "road " * chance.choice((3, 40, 300)) + str(chance.randrange(40))}],
    }  # fmt: skip
    if chance.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    if chance.random() < 0.1:
        body["temperature"] = 99
    return body


async def _client(client: httpx.AsyncClient, chance: random.Random, until: float, seen: dict[str, int]) -> None:
    """Ask, and hang up on every third answer somewhere in the middle."""
    while time.monotonic() < until:
        patience = chance.random() * 0.8 if chance.random() < 0.35 else 60.0
        try:
            async with asyncio.timeout(patience):
                answer = await client.post("/v1/chat/completions", json=_body(chance))
            seen[str(answer.status_code)] = seen.get(str(answer.status_code), 0) + 1
        except TimeoutError:
            seen["hung up"] = seen.get("hung up", 0) + 1


async def _load(url: str, seconds: float, seed: int) -> dict[str, int]:
    seen: dict[str, int] = {}
    limits = httpx.Limits(max_connections=24, max_keepalive_connections=8)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        until = time.monotonic() + seconds
        await asyncio.gather(*(_client(client, random.Random(f"{seed} {n}"), until, seen) for n in range(12)))
        for _ in range(600):
            load = (await client.get("/load")).json()
            if not load["server_load"] and not load["blocks"]["held"]:
                break
            await asyncio.sleep(0.05)
    assert load["server_load"] == 0
    assert load["blocks"]["held"] == 0
    assert load["blocks"]["free"] + load["blocks"]["cached"] == load["blocks"]["total"]
    return seen


def test_nothing_is_left_behind(model_path: object) -> None:
    """Warm up for a third of the time, note what the process has, load it for the rest, look again."""
    process, url = start_server("--kv-tokens", str(KV_TOKENS))
    try:
        asyncio.run(_load(url, SOAK_S / 3, 1))
        server = psutil.Process(process.pid)
        before, threads, files = server.memory_info().rss, server.num_threads(), server.num_fds()
        seen = asyncio.run(_load(url, SOAK_S * 2 / 3, 2))
        after = server.memory_info().rss
        assert seen.get("200", 0) > 0
        assert seen.get("hung up", 0) > 0
        assert set(seen) <= {"200", "400", "503", "hung up"}
        pool_left = KV_TOKENS * 23_040
        assert (after - before) / 2**20 < _SLACK_MIB + (pool_left / 2**20 if SOAK_S < 60 else 0)
        health = httpx.get(f"{url}/health").json()
        assert health["weights"] != "native" or health["weights_bytes"] <= 130 << 20, "the file's 94 MiB are held once"
        own = after - getattr(server.memory_info(), "shared", 0)  # torch's libraries are the system's to drop: CUDA's are large
        assert own <= health["weights_bytes"] + health["kv_cache"]["bytes"] + (_BESIDE_MIB << 20)
        assert server.num_threads() <= threads + 2
        assert server.num_fds() <= files + 24
    finally:
        process.terminate()
        process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
