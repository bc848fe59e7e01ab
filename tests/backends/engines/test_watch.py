"""Watching and probing, over canned answers and over our own engine's app."""
from __future__ import annotations

import json
from typing import Any

from gateway.backends.engines import ENGINES, Capabilities
from gateway.backends.engines.watch import Fetch, Watch, probe

VLLM = ENGINES["vllm"]


def _metrics(queries: int, hits: int) -> bytes:
    return f"vllm:num_requests_running 1\nvllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n".encode()


def _answering(*answers: tuple[int, bytes] | OSError) -> Fetch:
    left = list(answers)

    async def fetch(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return fetch


async def test_figures_grow_old() -> None:
    """Rates come from the second look on; after three rounds without an answer there are no figures, and a reason."""
    now = 0.0
    fetch = _answering((200, _metrics(100, 0)), (200, _metrics(200, 80)), (503, b""), OSError("refused"))
    watch = Watch(engine=VLLM, fetch=fetch, every_s=1.0, clock=lambda: now)
    assert watch.load() is None
    await watch.look()
    assert (load := watch.load()) is not None
    assert (load.running, load.hit_rate) == (1, None)
    now = 1.0
    await watch.look()
    assert (load := watch.load()) is not None
    assert load.hit_rate == 0.8
    now = 2.0
    await watch.look()
    assert watch.load() is not None
    assert watch.problem == "/metrics answered 503"
    now = 5.0
    await watch.look()
    assert watch.load() is None
    assert watch.problem == "/metrics: refused"


def _server(*, details: bool, priority: bool, metrics: bool) -> Fetch:
    """A vLLM with or without its flags."""

    async def fetch(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if path == "/metrics":
            return (200, _metrics(1, 1)) if metrics else (404, b"")
        asked: dict[str, Any] = json.loads(body or b"")
        if asked.get("priority") and not priority:
            return 400, b"{}"
        usage: dict[str, Any] = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0} if details else None}
        return 200, json.dumps({"usage": usage}).encode()

    return fetch


async def test_a_probe_finds_what_flags_are_set() -> None:
    """Cached tokens that are not told are a missing capability, not a 0; a refused priority is one that is never sent."""
    everything = Capabilities(answers=True, cached_tokens=True, priority=True, salt=True, load=True)
    assert await probe(VLLM, _server(details=True, priority=True, metrics=True), "m") == everything
    bare = await probe(VLLM, _server(details=False, priority=False, metrics=False), "m")
    assert bare == Capabilities(answers=True, salt=True)
    assert all(VLLM.flags[name] for name in ("cached_tokens", "priority"))
