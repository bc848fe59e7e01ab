from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import BadRequest, UpstreamError
from gateway.core.usage import TokenUsage
from gateway.dialects import openai_responses, sse
from gateway.dialects.relay import Direct
from gateway.dialects.responses_tap import diagnosis
from gateway.dialects.watch import Kept
from tests.dialects.play import wire
from tests.dialects.test_vectors import FILE, matches

VECTORS = [v for line in FILE.read_bytes().splitlines() if (v := orjson.loads(line))["api"] == "responses"] if FILE.exists() else []


def play(raw: bytes, *cuts: int) -> tuple[bytes, bytes, Direct]:
    relay = Direct(openai_responses, openai_responses.Tap(), openai_responses.usage, Kept(openai_responses.read_frame), hide_usage=True)
    edges = [0, *sorted(cuts), len(raw)]
    out = b"".join(relay.feed(raw[a:b]) for a, b in zip(edges, edges[1:], strict=False))    # noqa: RUF007
    return out, relay.finish(), relay


@given(st.sets(st.integers(1, len(wire("openai_responses/text.sse")) - 1), max_size=20))
def test_the_final_event_is_the_end(cuts: set[int]) -> None:
    """It is held back, needs no marker behind it, and has the tier and the usage that count."""
    raw = wire("openai_responses/text.sse")
    out, last, relay = play(raw, *cuts)
    assert out + last == raw
    assert last.startswith(b"event: response.completed")
    seen = relay.observed
    assert (seen.served_tier, seen.finish_reason, seen.served_model) == ("default", "stop", "gpt-5.4-mini")
    assert seen.usage == TokenUsage(uncached=266, cache_read=2944, cache_write={"30m": 0}, output=222, reasoning=150)
    assert relay.produced() == "Paris"
    assert relay.complete
    assert relay.started


@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    """Each published form of usage is read exactly."""
    if vector["stream"]:
        seen = play(b"".join(sse.frame(orjson.dumps(each), each["type"]) for each in vector["payload"]))[2].observed
    else:
        seen = openai_responses.look(orjson.dumps(vector["payload"]))
    assert matches(vector, seen)


def test_a_failed_answer_is_an_error() -> None:
    """In the middle it passes as it came; as first event nobody has seen anything."""
    failed = sse.frame(b'{"type":"response.failed","response":{"id":"r","status":"failed","error":{"code":"server_error","message":"boom"}}}', "response.failed")
    raw = wire("openai_responses/text.sse")
    half = raw[:raw.index(b"event: response.completed")]
    out, last, relay = play(half + failed)
    assert (out, last, relay.observed.error, relay.complete) == (half + failed, b"", "boom", False)
    assert play(failed)[:2] == (b"", b"")
    assert play(sse.frame(b'{"type":"error","message":"boom"}', "error"))[2].observed.error == "boom"


@pytest.mark.parametrize(("response", "finish"), [
    ({"status": "completed", "output": [{"type": "function_call"}]}, "tool_use"), ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
    ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"), ({"status": "in_progress"}, None),
])
def test_finish_reasons(response: dict[str, Any], finish: str | None) -> None:
    """Read from the status, its details and what was put out."""
    assert openai_responses.look(orjson.dumps(response)).finish_reason == finish


def test_an_answer_whose_status_is_failed_is_an_answer() -> None:
    """It passes as it came, and what it used is known; an error object alone is none."""
    seen = openai_responses.look(b'{"object":"response","status":"failed","error":{"message":"x"},"usage":{"input_tokens":5,"output_tokens":2}}')
    assert (seen.error, seen.usage) == (None, TokenUsage(uncached=5, output=2))
    assert openai_responses.look(b'{"error":{"message":"x"}}').error == "x"


def test_deltas_are_told_at_a_glance() -> None:
    """Once the answer has begun, whole deltas pass without being decoded; what is not JSON does not."""
    tap, delta = openai_responses.Tap(), wire("openai_responses/text.sse").split(b"\n\n")[1] + b"\n\n"
    assert not tap.plain(delta)
    tap.look(delta)
    assert tap.plain(delta)
    assert not tap.plain(delta.replace(b'"Par"', b'"Par'))
    assert not tap.plain(b"event: response.completed\ndata: {}\n\n")


def test_an_error_in_a_stream_is_one_for_sdks_and_for_those_who_read_types() -> None:
    """The official client raises from the member `error`; others look at the type."""
    frame = sse.parse(openai_responses.stream_error(UpstreamError("boom")))
    assert frame is not None
    found = orjson.loads(frame.data)
    assert (frame.event, found["type"], found["error"]["message"], found["message"]) == ("error", "error", "boom", "boom")


def test_sketch() -> None:
    """The limit has another name here, and the input may be text."""
    found = dialects.read(openai_responses.NAME, b'{"model":"m","input":"hi","max_output_tokens":9,"stream":true}')
    assert (found.model, found.max_output_tokens, found.stream, found.wants_usage) == ("m", 9, True, True)
    assert dialects.read(openai_responses.NAME, b'{"model":"m","previous_response_id":"resp_1"}').previous_id == "resp_1"
    with pytest.raises(BadRequest):
        dialects.read(openai_responses.NAME, b'{"model":"m","previous_response_id":1}')


@pytest.mark.parametrize(("said", "reason", "tokens"), [
    ({"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": 7}, "tools_changed", 7), ({"type": "cache_hit"}, None, None),
    ({"type": "comparison_response_not_found"}, "comparison_response_not_found", None), ({"type": "unavailable"}, "unavailable", None),
    ({"type": "cache_miss", "reason": 5, "cache_missed_tokens": -1}, None, None), ({"type": "cache_miss", "reason": "x" * 99, "cache_missed_tokens": "9"}, "x" * 60, None),
    (None, None, None), ([], None, None), ("cache_miss", None, None), ({}, None, None),
])  # fmt: skip
def test_the_provider_says_why_its_cache_missed(said: Any, reason: str | None, tokens: int | None) -> None:
    """By the types of its client library; odd ones say nothing."""
    found = diagnosis({"prompt_cache_diagnostics": said})
    assert (found and found.reason, found and found.tokens) == (reason, tokens)
