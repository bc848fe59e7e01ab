"""The published vectors, and kinds that they do not have, through the whole gateway."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vectors import __main__ as command
from tests.vectors import compare
from tests.vectors.run import read, run

FILE = Path(__file__).parents[2].parent / "shared" / "reference" / "usage-vectors.jsonl"


def vector(name: str, provider: str, api: str, model: str, payload: Any, expected: dict[str, Any] | None, cost: str | None, **more: Any) -> dict[str, Any]:
    return {"id": name, "provider": provider, "api": api, "model": model, "stream": isinstance(payload, list), "payload": payload,
            "expected": expected, "expected_cost_usd": cost, **more}


def chat(model: str, usage: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "model": model, "choices": [], "usage": usage, **more}


def known(uncached: int, output: int, **more: Any) -> dict[str, Any]:
    return {"uncached_input": uncached, "output_total": output, **more}


GEMINI = {"modelVersion": "gemini-3.8-flash", "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}}
MESSAGE = {"type": "message", "model": "claude-opus-4-8", "content": [], "stop_reason": "end_turn"}
KINDS = [
    vector("writes last as long as was asked", "moonshot", "chat_completions", "kimi-k3",
           chat("kimi-k3", {"prompt_tokens": 3000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1500}}),
           known(500, 10, cache_read=1000, cache_write_1h=1500), "0.01095", request={"prompt_cache_options": {"mode": "implicit", "ttl": "1h"}}),
    vector("one-hour markers and no split", "anthropic", "messages", "claude-opus-4-8",
           {**MESSAGE, "usage": {"input_tokens": 100, "cache_creation_input_tokens": 1000, "output_tokens": 10}},
           known(100, 10, cache_write_1h=1000), "0.01075", request={"cache_control_ttls": ["1h"]}),
    vector("markers of two lifetimes and no split", "anthropic", "messages", "claude-opus-4-8",
           {**MESSAGE, "usage": {"input_tokens": 100, "cache_creation_input_tokens": 1000, "output_tokens": 10}},
           known(100, 10, cache_write=1000), "0.007", request={"cache_control_ttls": ["1h", "5m"]}),
    vector("the tier stands in a header alone", "google", "generate_content", "gemini-3.8-flash", GEMINI, known(1000, 100), "0.002025",
           context={"headers": {"x-gemini-service-tier": "priority"}}),
    vector("a native body on Bedrock", "bedrock", "invoke", "anthropic.claude-opus-4-8", {**MESSAGE, "model": None, "usage": {"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 10}},
           known(100, 10, cache_read=50), "0.000775"),
    vector("a profile names the region", "bedrock", "converse", "us.anthropic.claude-opus-4-8", {"usage": {"inputTokens": 100, "outputTokens": 10}}, known(100, 10), "0.000825"),
    vector("an image was made", "openai", "responses", "gpt-5.4",
           {"object": "response", "status": "completed", "model": "gpt-5.4", "usage": {"input_tokens": 100, "output_tokens": 10}, "tool_usage": {"image_gen": {"input_tokens": 5, "output_tokens": 20, "total_tokens": 25}}},
           known(100, 10, **{"tool:image_gen": 25}), None),
    vector("Google's interactions in a stream", "google", "interactions", "gemini-3.8-flash",
           [{"event": "x"}, {"model": "gemini-3.8-flash", "usage": {"total_input_tokens": 1000, "total_output_tokens": 90, "total_thought_tokens": 10, "total_tokens": 1100}}], known(1000, 100, reasoning=10), "0.001125"),
    vector("plain completions", "openai", "completions", "gpt-5.4", chat("gpt-5.4", {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}), known(100, 10), "0.0004"),
    vector("a tier that nobody has a price for", "openai", "chat_completions", "gpt-5.4", chat("gpt-5.4", {"prompt_tokens": 100, "completion_tokens": 10}, service_tier="scale"), known(100, 10), None),
    vector("nothing that can be recognised", "google", "upload", "x", {"file": {}}, None, None),
]


@pytest.fixture(scope="module")
def results() -> dict[str, list[str]]:
    return {result.id: result.misses for result in run(KINDS)}


@pytest.mark.parametrize("name", [each["id"] for each in KINDS])
def test_kinds(results: dict[str, list[str]], name: str) -> None:
    """What the request, a header or the path says counts where the answer leaves it open; unknown stays unknown."""
    assert results[name] == []


@pytest.mark.skipif(not FILE.is_file(), reason=f"no vectors at {FILE}")
def test_every_published_vector_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """As `python -m tests.vectors FILE` says."""
    assert command.main([str(FILE)]) == 0
    assert capsys.readouterr().out == f"{len(read(FILE))} of {len(read(FILE))} exact\n"


def test_a_miss_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it is and what it should be; wrong use is told too."""
    import json

    wrong = {**KINDS[8], "expected": known(99, 10), "expected_cost_usd": "1"}
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(wrong) + "\n")
    assert command.main([str(file)]) == 1
    assert capsys.readouterr().out == "0 of 1 exact\n  plain completions: uncached_input is 100, should be 99; cost is 0.000400000, should be 1.000000000\n"
    assert command.main(["nowhere"]) == 2


ATTEMPT = {"tokens": {"uncached": 5, "cache_read": 0, "cache_write": {"5m": 3, "1h": 0}, "output": 2, "reasoning": None, "other": {}},
           "tokens_from": "provider", "flags": [], "cost_usd": "0.000000001"}


@pytest.mark.parametrize(("expected", "more", "changed", "misses"), [
    (known(5, 2, cache_write_5m=3), {}, {}, 0), (known(5, 2, cache_write_1h=3), {}, {}, 2), (known(5, 2, cache_write_1h=3), {"accept_also": [{"cache_write_5m": 3}]}, {}, 0),
    (known(5, 2), {}, {"tokens_from": "estimate"}, 1), (known(5, 2), {}, {"cost_usd": None}, 1), (known(5, 2, anomaly="odd"), {}, {}, 1), (known(5, 2, anomaly="odd"), {}, {"flags": ["odd"]}, 0),
    (known(5, 9, complete=False), {}, {"tokens_from": "mixed"}, 0), (known(5, 9, complete=False), {}, {}, 1), (known(5, 2, extra_iterations=[{"type": "compaction", "output_total": 4}]), {}, {}, 1),
    (None, {}, {}, 1), (None, {}, {"tokens_from": "estimate"}, 0), (None, {}, {"tokens_from": "none"}, 1), (None, {}, {"tokens_from": "none", "cost_usd": None}, 0),
])
def test_comparison(expected: Any, more: dict[str, Any], changed: dict[str, Any], misses: int) -> None:
    """Every class, where it comes from, flags and cost; what is not final must not look final."""
    assert len(compare.differences({"expected": expected, "expected_cost_usd": "0.0000000004", **more}, {**ATTEMPT, **changed})) == misses
