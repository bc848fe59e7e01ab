"""Answers whose fields are of other types than their dialect says: read all the same or `Malformed`, and never an error of ours.

Every field of every kind of answer, and of every event of a stream, is given every odd value, on all roads.
"""
from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway import dialects
from gateway.core.call import Sketch
from gateway.core.outcome import Observed
from gateway.dialects.recognise import Reader
from gateway.dialects.sse import Malformed
from tests.build import chat_answer, chat_stream, messages_answer, messages_stream

ODD: list[Any] = [None, True, 5, -1, 1.5, 10**30, "x", "\u202e", "", [], [[]], [None], [5], {}, {"a": []}]
FUNCTION = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ERROR = {"type": "error", "error": {"message": "m", "type": "t", "param": None, "code": "c"}}


def _chat() -> dict[str, Any]:
    answer = {**chat_answer(), "service_tier": "default"}
    answer["choices"][0]["message"] |= {"tool_calls": [FUNCTION], "reasoning_content": "t"}
    answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": 1}
    return answer


def _messages() -> dict[str, Any]:
    blocks = [
        {"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        {"type": "thinking", "thinking": "x", "signature": "s"},
    ]  # fmt: skip
    usage = {
        **messages_answer()["usage"], "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard", "server_tool_use": {"web_search_requests": 1},
    }  # fmt: skip
    return {**messages_answer(), "content": blocks, "usage": usage}


def _response() -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "error": None,
        "incomplete_details": None, "service_tier": "default",
        "output": [
            {"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]},
            {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}"},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}]},
        ],
        "usage": {
            "input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "input_tokens_details": {"cached_tokens": 1},
            "output_tokens_details": {"reasoning_tokens": 1},
        },
    }  # fmt: skip


WHOLE = {
    "openai_chat": [_chat(), ERROR], "anthropic_messages": [_messages(), ERROR], "openai_responses": [_response(), ERROR],
    "openai_embeddings": [{"object": "list", "data": [{"index": 0, "embedding": [0.1]}], "model": "m", "usage": {"prompt_tokens": 3}}, ERROR],
}  # fmt: skip
STREAMS = {
    "openai_chat": [
        *[json.loads(step[6:]) for step in chat_stream()[:-1]], {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **FUNCTION}]}}]},
        ERROR,
    ],
    "anthropic_messages": [
        *[json.loads(step.partition(b"data: ")[2]) for step in messages_stream()],
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "a", "name": "n", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}}, ERROR,
    ],
    "openai_responses": [
        {"type": "response.created", "response": {**_response(), "output": [], "usage": None, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": _response()["output"][0]},
        {"type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "content_index": 0, "delta": "hi"},
        {"type": "response.output_item.added", "output_index": 1, "item": _response()["output"][1]},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
        {"type": "response.completed", "response": _response()}, ERROR,
    ],
}  # fmt: skip
ROADS = [(ours, theirs) for ours in dialects.DIALECTS for theirs in dialects.DIALECTS if ours == theirs or "embeddings" not in ours + theirs]


def spoilt(document: Any) -> Iterator[Any]:
    """The document with each odd value in each place."""

    def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, each in inner:
            yield (*before, name)
            yield from places(each, (*before, name))

    for *road, last in places(document):
        for odd in ODD:
            found = copy.deepcopy(document)
            at = found
            for name in road:
                at = at[name]
            at[last] = odd
            yield found


def fit(observed: Observed) -> None:
    """What goes into the books is of the types that they have."""
    for text in (observed.served_model, observed.served_tier, observed.response_id, observed.region, observed.error):
        assert text is None or isinstance(text, str)
    for text in (observed.served_model, observed.served_tier, observed.response_id, observed.region):
        assert text is None or (text.isprintable() and len(text) <= 256)
    if (tokens := observed.usage) is not None:
        assert all(count is None or (type(count) is int and count >= 0) for count in (tokens.uncached, tokens.cache_read, tokens.output))


@pytest.mark.parametrize(("ours", "theirs"), ROADS)
def test_whole_answers(ours: str, theirs: str) -> None:
    for document in WHOLE[theirs]:
        for odd in spoilt(document):
            body = json.dumps(odd).encode()
            assert json.loads(dialects.upstream_error(ours, theirs, 400, body))["error"]
            assert isinstance(dialects.answer_text(theirs, body), str)
            try:
                _, observed = dialects.answer(ours, theirs, body, Sketch(model="m", stream=False, spans={}))
            except Malformed:
                continue
            fit(observed)


@pytest.mark.parametrize(("ours", "theirs"), [road for road in ROADS if road[1] in STREAMS])
def test_streams(ours: str, theirs: str) -> None:
    """An odd event anywhere, good ones around it."""
    events = STREAMS[theirs]
    for n, event in enumerate(events):
        for odd in spoilt(event):
            relay = dialects.relay(ours, theirs, Sketch(model="m", stream=True, spans={}), hide_usage=False)
            try:
                for document in (*events[:n], odd, *events[n + 1 : -1]):
                    kind = str(document["type"]).encode("utf-8", "replace") if theirs != "openai_chat" else b""
                    relay.feed((b"event: %s\n" % kind if kind else b"") + b"data: %s\n\n" % json.dumps(document).encode())
                    if relay.ended:
                        break
                relay.finish()
            except Malformed as error:
                relay.fail(error)
            assert isinstance(relay.produced(), str)
            fit(relay.observed)


def test_what_is_only_passed_on() -> None:
    """Usage of any shape is looked for in anything."""
    google = {"candidates": [{"content": {"parts": [{"text": "hi"}]}}], "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 1, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}]}, "modelVersion": "g"}  # fmt: skip
    bedrock = {"output": {"message": {}}, "usage": {"inputTokens": 3, "outputTokens": 1, "cacheReadInputTokens": 0}}
    for document in (google, bedrock, *[each for several in WHOLE.values() for each in several]):
        for odd in spoilt(document):
            reader = Reader("application/json")
            reader.feed(json.dumps(odd).encode())
            reader.finish()
            fit(reader.observed)
