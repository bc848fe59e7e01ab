"""The real gateway, in front of a model server that caches and counts as the embedded engine does."""
from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.demo import command
from gateway.demo.replay import MODEL
from tests.build import Gateway
from tests.upstream import Received, Reply, Site, Upstream, stream, whole

BLOCK = 4
LIMIT = 400
POLICIES = {
    "assistant": {"classes": {"interactive": {"value_usd_per_hour": 60, "lanes": ["fast"]}}, "default_class": "interactive"},
    "nightly": {"default_class": "batch"},
    "demo": {"default_class": "standard"},
}
"""As the shipped ones, but that no measured speed can change a lane: this engine answers at once in both."""
PRICES = f"""
[embedded]
source = "the tests"
rows = [
  {{model = "{MODEL}", valid_from = 2025-01-01, input = "0.02", cached = "0.002", output = "0.08"}},
  {{model = "{MODEL}", tier = "priority", valid_from = 2025-01-01, input = "0.05", cached = "0.005", output = "0.20"}},
]
"""


class FakeEngine(Site):
    """A word is a token. Prefixes are found again in whole blocks, by salt; every token is counted by service tier."""

    def reset(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.instead: Callable[[int], Reply | None] = lambda number: None
        """What to answer to a call, from 1, in place of an answer."""
        self.caches = True
        self.lost = 0
        """Tokens of each answer that are generated and not told."""
        if not hasattr(self, "counted"):
            self.counted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._seen: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def take(self, request: Received) -> Reply:
        if request.path.endswith("/metrics"):
            return Reply(headers=(("content-type", "text/plain"),), steps=(self._metrics().encode(),))
        self.calls.append(request.json)
        return self.instead(len(self.calls)) or self._answer(request.json)

    def _answer(self, body: dict[str, Any]) -> Reply:
        words = json.dumps([body.get("tools", []), body["messages"]]).split()
        if len(words) > LIMIT:
            error = {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
            return whole({"error": error}, 400)
        tier, output = body.get("service_tier", "default"), body["max_tokens"] // 2
        cached = self._cached(body["cache_salt"], words) if self.caches else 0
        for index, count in enumerate((len(words), cached, output + self.lost)):
            self.counted[tier][index] += count
        usage = {
            "prompt_tokens": len(words), "completion_tokens": output, "total_tokens": len(words) + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip
        head = {"id": "x", "created": 1, "model": MODEL, "service_tier": tier}
        if not body["stream"]:
            choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "length"}
            return whole({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        head["object"] = "chat.completion.chunk"
        chunks = [
            {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "fine"}, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
            {**head, "choices": [], "usage": usage},
        ]
        return stream(*[f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks], b"data: [DONE]\n\n")

    def _cached(self, salt: str, words: list[str]) -> int:
        blocks = [tuple(words[: n + BLOCK]) for n in range(0, len(words) - BLOCK, BLOCK)]
        found = sum(block in self._seen[salt] for block in blocks) * BLOCK
        self._seen[salt].update(blocks)
        return found

    def _metrics(self) -> str:
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total")
        return "# TYPE tollway_engine:prompt_tokens_total counter\n" + "".join(
            f'tollway_engine:{name}{{model_name="{MODEL}",service_tier="{tier}"}} {count}\n'
            for tier, counts in self.counted.items() for name, count in zip(names, counts, strict=True)
        )  # fmt: skip


@pytest.fixture(scope="session")
def _engine(upstream: Upstream) -> FakeEngine:
    upstream.sites["engine"] = engine = FakeEngine("engine", f"{upstream.base}/engine/v1")
    engine.reset()
    return engine


@pytest.fixture
def engine(_engine: FakeEngine) -> FakeEngine:
    """As new, but for what it has counted."""
    _engine.reset()
    return _engine


@pytest.fixture(scope="session")
def up(_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """What `tollway up` brings up, without the engine's own weights."""
    folder = tmp_path_factory.mktemp("demo")
    lanes = {"fast": {"service_tier": "priority"}, "standard": {"service_tier": "default"}}
    backend = {"dialect": "openai", "url": _engine.url, "models": [MODEL], "lanes": lanes, "cache_salt": True}
    with Gateway(folder, {"backends": {"embedded": backend}}, POLICIES, PRICES) as gateway:
        told = {"engine": {"url": _engine.url.removesuffix("/v1"), "backend": "embedded"}}
        (folder / "data" / "run.json").write_text(json.dumps(told))
        yield gateway


def session(name: str, turns: int, words: int = 20) -> dict[str, Any]:
    """A session of that many turns; each adds about that many words."""
    said = " ".join(f"{name}{n}" for n in range(words))
    messages = [{"role": "system", "content": f"You work on {said}."}, {"role": "user", "content": "Begin."}]
    for turn in range(1, turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})  # type: ignore[dict-item]
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn}: {said}"})
    tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
    return {"id": name, "source": "test", "tools": [tool], "messages": messages, "turns": list(range(2, 2 * turns + 1, 2))}


@pytest.fixture
def demo(up: Gateway, engine: FakeEngine, tmp_path: Path) -> Callable[..., Result]:
    """Runs the command with these sessions."""

    def run(*sessions: dict[str, Any], data: Path | None = None, args: tuple[str, ...] = ()) -> Result:
        file = tmp_path / "sessions.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in sessions))
        folder = data or up.folder / "data"
        return CliRunner().invoke(
            command, ["--url", up.url, "--key", up.admin_key, "--data", str(folder), "--sessions", str(file), *args]
        )

    assert threading.current_thread() is threading.main_thread()
    return run
