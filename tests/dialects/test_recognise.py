from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage import TokenUsage
from gateway.dialects import recognise, usage_bedrock, usage_gemini
from gateway.dialects.recognise import Reader

JSON, EVENTS, AMAZON = "application/json; charset=utf-8", "text/event-stream", "application/vnd.amazon.eventstream"
GEMINI = {"modelVersion": "gemini-9", "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7, "trafficType": "ON_DEMAND_FLEX"}}


def amazon(document: Any) -> bytes:
    payload = json.dumps(document).encode()
    return struct.pack(">III", 16 + 4 + len(payload), 4, 0) + b"\0\0\0\0" + payload + b"crcs"


def read(content_type: str, *chunks: bytes, **headers: str) -> Reader:
    reader = Reader(content_type, {name.replace("_", "-"): value for name, value in headers.items()})
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return reader


ANSWERS = [
    pytest.param(JSON, json.dumps(GEMINI).encode(), id="whole"), pytest.param(JSON, json.dumps([{"usageMetadata": {"promptTokenCount": 9}}, GEMINI]).encode(), id="array"),
    pytest.param(EVENTS, b": x\r\n\r\ndata: " + json.dumps(GEMINI).encode() + b"\r\n\r\n", id="events"), pytest.param(EVENTS, b"data: " + json.dumps(GEMINI).encode(), id="no last line end"),
    pytest.param(AMAZON, amazon({"p": "x"}) + amazon({"usage": {"inputTokens": 5, "outputTokens": 2}}) + amazon({}), id="binary frames"),
]


@pytest.mark.parametrize(("content_type", "raw"), ANSWERS)
@given(st.data())
def test_usage_does_not_depend_on_cuts(content_type: str, raw: bytes, draw: st.DataObject) -> None:
    """Wherever the network cuts, the same is read."""
    cuts = sorted(draw.draw(st.sets(st.integers(1, len(raw) - 1), max_size=9)))
    reader = read(content_type, *(raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)))
    assert reader.observed.usage == TokenUsage(uncached=5, output=2)


@pytest.mark.parametrize(("content_type", "raw"), [
    (JSON, b"<html>"), (JSON, b"[1, 2]"), (JSON, b'{"usage": 5}'), (JSON, b'{"usage": {"total": 5}}'), (EVENTS, b"data: x\n\n"), (EVENTS, b"data: " + b"x" * (1 << 21)), (AMAZON, b"\0" * 32), ("audio/mpeg", b"\xff\xfb"),
])
def test_what_cannot_be_read_is_no_usage(content_type: str, raw: bytes) -> None:
    """And no error either: it is only looked at."""
    assert read(content_type, raw, raw).observed.usage is None


def test_too_much_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded."""
    monkeypatch.setattr(recognise, "MOST_BYTES", 10)
    assert read(JSON, json.dumps(GEMINI).encode()).observed.usage is None


def test_model_tier_and_region() -> None:
    """Each from where the provider says it; a header beats the body."""
    seen = read(JSON, json.dumps(GEMINI).encode()).observed
    assert (seen.served_model, seen.served_tier) == ("gemini-9", "on_demand_flex")
    assert read(JSON, json.dumps(GEMINI).encode(), x_gemini_service_tier="priority").observed.served_tier == "priority"
    message = {"type": "message", "id": "msg_1", "model": "c", "usage": {"input_tokens": 1, "output_tokens": 2, "service_tier": "standard", "inference_geo": "us"}}
    seen = read(JSON, json.dumps(message).encode()).observed
    assert (seen.served_model, seen.served_tier, seen.region, seen.response_id) == ("c", "standard", "us", "msg_1")
    converse = {"usage": {"inputTokens": 1, "outputTokens": 2}, "serviceTier": {"type": "flex"}}
    assert read(JSON, json.dumps(converse).encode()).observed.served_tier == "flex"


@pytest.mark.parametrize(("raw", "usage"), [
    ({"promptTokenCount": 9, "cachedContentTokenCount": 12}, TokenUsage(uncached=0, cache_read=9, output=0, flags=("cached_exceeds_prompt",))),
    ({"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 99}, TokenUsage(uncached=9, output=1, flags=("total_differs_from_sum",))),
    ({"promptTokenCount": -1}, TokenUsage(flags=("invalid_promptTokenCount",))),
    ({"promptTokenCount": 9, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 2}, None], "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 3}]},
     TokenUsage(uncached=9, output=0, other={"cached_audio_in": 3}, flags=("cached_audio_exceeds_audio",))),
])
def test_googles_odd_figures_are_flagged(raw: dict[str, Any], usage: TokenUsage) -> None:
    """Nothing is negative and nothing is cut down in silence."""
    assert usage_gemini.usage(raw) == usage


@pytest.mark.parametrize(("model", "searches"), [("gemini-2.5-pro", 1), ("gemini-3.8-flash", 2)])
def test_searches_are_counted_as_they_are_charged(model: str, searches: int) -> None:
    """Per prompt up to Gemini 2, per query since."""
    document = {"modelVersion": model, "candidates": [{"groundingMetadata": {"webSearchQueries": ["a", "b"]}}], "usageMetadata": {"promptTokenCount": 1}}
    raw = usage_gemini.find(document)
    assert raw is not None
    assert usage_gemini.usage(raw).other == {"web_search_requests": searches}


@pytest.mark.parametrize(("raw", "written", "flags"), [
    ({"cacheWriteInputTokens": 5, "cacheDetails": [{"ttl": "1h", "inputTokens": 2}, "x"]}, {"1h": 2, "unknown": 3}, ()), ({"cacheWriteInputTokens": 5}, {"unknown": 5}, ()),
    ({"cacheWriteInputTokens": 1, "cacheDetails": [{"ttl": "5m", "inputTokens": 2}]}, {"5m": 2}, ("write_split_above_total",)), ({}, {}, ()),
])
def test_bedrocks_writes(raw: dict[str, Any], written: dict[str, int], flags: tuple[str, ...]) -> None:
    """By lifetime; what the details leave over stays open."""
    usage = usage_bedrock.usage({"inputTokens": 1, "outputTokens": 1, **raw})
    assert (usage.cache_write, usage.flags) == (written, flags)
