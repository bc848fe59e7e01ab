from __future__ import annotations

from typing import Any

import openai.types.responses
import orjson
import pytest
from pydantic import TypeAdapter

from gateway.core.events import (
    Ended,
    Event,
    Failed,
    Finished,
    RefusalDelta,
    Started,
    TextDelta,
    ThinkingDelta,
    ToolDelta,
    ToolStart,
    Used,
)
from gateway.core.usage import TokenUsage
from gateway.dialects import responses_answer, responses_encoder, responses_request
from gateway.dialects.sse import Frame, Malformed
from tests.dialects.play import data

SIGNED = {"type": "thinking", "thinking": "hm", "signature": "U2ln"}
USAGE = TokenUsage(uncached=1, cache_read=2, cache_write={"5m": 3}, output=4, reasoning=1)
EVENTS: list[Event] = [
    Started("c", "m", 5), ThinkingDelta("h"), ThinkingDelta("m"), ThinkingDelta(raw=SIGNED), TextDelta("a"), TextDelta(""), TextDelta("b"), RefusalDelta("no"),
    ToolStart(0, "i", "t"), ToolDelta(0, '{"x"'), ToolStart(1, "j", "t"), ToolDelta(0, ":1}"), ToolDelta(1, ""), TextDelta("c"), Finished("tool_use"), Used(USAGE),
]
SCHEMA: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)


def decoded(*documents: dict[str, Any]) -> list[Event]:
    decode = responses_answer.decoder()
    return [event for each in documents for event in decode(Frame(b"", None, orjson.dumps(each)))]


def added(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "item": {"type": "function_call", "id": name, "call_id": name, "name": name, "arguments": ""}, **more}


@pytest.mark.parametrize(("documents", "told"), [
    ([added("a", output_index=0), {"type": "response.function_call_arguments.done", "output_index": 0, "item_id": "a", "arguments": '{"x":1}'}], [(0, '{"x":1}')]),
    ([added("a"), added("b"), *[{"type": "response.function_call_arguments.delta", "item_id": name, "delta": "{}"} for name in "ab"]], [(0, "{}"), (1, "{}")]),
    ([added("a", output_index=0), {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
      {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{}"}], [(0, "{}")]),
    ([added("a", output_index=0), {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": " "},
      {"type": "response.output_item.done", "output_index": 0, "item": {"type": "function_call", "call_id": "a", "arguments": "null"}}], [(0, "{}")]),
], ids=["only the last event has arguments", "items by name alone", "deltas, then all of it again", "nothing but a blank"])
def test_arguments_stand_once(documents: list[dict[str, Any]], told: list[tuple[int, str]]) -> None:
    """However a server tells them: in pieces, at the end, by number or by name."""
    assert [(each.index, each.arguments) for each in decoded(*documents) if isinstance(each, ToolDelta)] == told


def encoded(events: list[Event]) -> list[dict[str, Any]]:
    encoder = responses_encoder.Encoder()
    return data(b"".join(map(encoder.encode, events)) + encoder.end())


def test_every_item_is_announced_filled_and_closed() -> None:
    """Numbers count up, what was opened is closed, and the last event repeats the whole answer as it would stand by itself."""
    found = encoded(EVENTS)
    for each in found:
        SCHEMA.validate_python(each)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    opened = [each["output_index"] for each in found if each["type"] == "response.output_item.added"]
    assert opened == [0, 1, 2, 3, 4]
    assert sorted(each["output_index"] for each in found if each["type"] == "response.output_item.done") == opened
    final = found[-1]
    assert final["type"] == "response.completed"
    assert final["response"] == orjson.loads(responses_answer.render_answer(EVENTS))
    assert [item["type"] for item in final["response"]["output"]] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert [item["arguments"] for item in final["response"]["output"] if item["type"] == "function_call"] == ['{"x":1}', "{}"]
    assert [each.get("text") for each in found if each["type"] == "response.output_text.done"] == ["ab", "c"]


def test_a_signed_block_is_sealed_into_its_reasoning() -> None:
    """Summary and block are one item, for a client to send back."""
    item = encoded(EVENTS)[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert responses_request.opened(item) == SIGNED
    alone = orjson.loads(responses_answer.render_answer([ThinkingDelta(raw={"type": "redacted_thinking", "data": "x"}), TextDelta("a")]))
    assert [each["type"] for each in alone["output"]] == ["reasoning", "message"]


@pytest.mark.parametrize(("reason", "status", "why"), [
    ("stop", "completed", None), ("tool_use", "completed", None), ("stop_sequence", "completed", None), (None, "completed", None),
    ("length", "incomplete", "max_output_tokens"), ("content_filter", "incomplete", "content_filter"), ("refusal", "incomplete", "content_filter"),
])
def test_how_it_ended(reason: Any, status: str, why: str | None) -> None:
    """A limit or a filter is told as incomplete, with its reason, in both forms."""
    events: list[Event] = [Started("resp_c", "m"), TextDelta("a"), *([Finished(reason)] if reason else [])]
    for response in (encoded(events)[-1]["response"], orjson.loads(responses_answer.render_answer(events))):
        assert (response["status"], response["incomplete_details"], response["id"]) == (status, {"reason": why} if why else None, "resp_c")
    assert encoded(events)[-1]["type"] == f"response.{status}"
    assert encoded([])[-1]["response"]["output"] == []


def test_a_call_that_was_whole_cannot_go_on() -> None:
    """Blank fragments are nothing; others mean that the backend mixed its calls up."""
    encoder = responses_encoder.Encoder()
    for event in (Started("c", "m"), ToolStart(0, "i", "t"), ToolDelta(0, "{}"), TextDelta("a")):
        encoder.encode(event)
    assert encoder.encode(ToolDelta(0, " ")) == b""
    with pytest.raises(Malformed):
        encoder.encode(ToolDelta(0, "{}"))


CALL = {"type": "function_call", "id": "fc", "call_id": "i", "name": "t", "arguments": ""}
HEAD = {"type": "response.created", "response": {"id": "r", "model": "m", "created_at": 5}}
DONE = {"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed"}}


@pytest.mark.parametrize(("documents", "events"), [
    pytest.param([{"type": "response.output_text.delta", "delta": "a"}, {"type": "response.refusal.delta", "delta": "no"}], [TextDelta("a"), RefusalDelta("no")], id="words"),
    pytest.param([{"type": "response.reasoning_text.delta", "delta": "a"}, {"type": "response.reasoning_summary_text.delta", "delta": "b"}],
                 [ThinkingDelta("a"), ThinkingDelta("b")], id="both kinds of reasoning"),
    pytest.param([{"type": "response.output_item.done", "item": {"type": "reasoning", "encrypted_content": "x"}}, {"type": "response.output_item.done", "item": {"type": "reasoning"}}],
                 [ThinkingDelta(raw={"type": "reasoning", "encrypted_content": "x"})], id="reasoning that travels"),
    pytest.param([{"type": "response.output_item.added", "output_index": 3, "item": CALL}, {"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "{}"},
                  {"type": "response.output_item.done", "output_index": 3, "item": {**CALL, "arguments": "{}"}}], [ToolStart(0, "i", "t"), ToolDelta(0, "{}")], id="a call in fragments"),
    pytest.param([{"type": "response.output_item.done", "output_index": 0, "item": {**CALL, "arguments": '{"a":1}'}}], [ToolStart(0, "i", "t"), ToolDelta(0, '{"a":1}')], id="a call at once"),
    pytest.param([{"type": "response.something_new", "delta": "x"}], [], id="an unknown event"),
])
def test_frames_become_events(documents: list[dict[str, Any]], events: list[Event]) -> None:
    """Calls are numbered by themselves, whatever stands between them."""
    assert decoded(HEAD, *documents)[1:] == events


def test_the_last_event() -> None:
    """It has usage, reason and end; of a server that sent no deltas, the words too; of a failure, the error."""
    output = [{"type": "message", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
              {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}, {**CALL, "arguments": "{}"}]
    full = {**DONE["response"], "output": output, "usage": {"input_tokens": 5, "output_tokens": 2}, "service_tier": "flex"}    # type: ignore[dict-item]
    last: list[Event] = [Used(TokenUsage(uncached=5, output=2), "flex"), Finished("tool_use"), Ended()]
    words: list[Event] = [TextDelta("a"), RefusalDelta("no"), ThinkingDelta("hm"), ThinkingDelta(raw=output[1]), ToolStart(0, "i", "t"), ToolDelta(0, "{}")]
    assert decoded(HEAD, {**DONE, "response": full}) == [Started("r", "m", 5), *words, *last]
    assert decoded(HEAD, {"type": "response.output_text.delta", "delta": "a"}, {**DONE, "response": full})[2:] == [*words[-2:], *last]
    assert decoded(HEAD, added("i"), {**DONE, "response": full})[1:] == [ToolStart(0, "i", "i"), *words[:-2], ToolDelta(0, "{}"), *last]
    assert responses_answer.events(full) == [Started("r", "m"), *words, *last[:-1]]
    failed = {"type": "response.failed", "response": {"object": "response", "error": {"code": "server_error", "message": "boom"}, "usage": {"input_tokens": 5, "output_tokens": 0}}}
    assert decoded(HEAD, failed)[1:] == [Used(TokenUsage(uncached=5, output=0)), Failed("boom", "server_error")]
    assert responses_answer.events(failed["response"]) == [Used(TokenUsage(uncached=5, output=0)), Failed("boom", "server_error")]    # type: ignore[arg-type]
    assert decoded({"type": "error", "message": "x", "code": "y"}) == [Failed("x", "y")]
    assert responses_answer.decoder()(Frame(b"", None, b"[DONE]")) == [Ended()]
