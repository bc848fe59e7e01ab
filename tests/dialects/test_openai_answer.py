from __future__ import annotations

from typing import Any

import orjson
import pytest

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
from gateway.dialects import openai_answer, sse
from gateway.dialects.sse import Frame
from tests.dialects.play import data


def decoded(*documents: dict[str, Any]) -> list[Event]:
    decode = openai_answer.decoder()
    return [event for each in documents for event in decode(Frame(b"", None, orjson.dumps(each)))]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "created": 5, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(arguments: str = "", name: str = "", **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{**more, "function": {"arguments": arguments, **({"name": name} if name else {})}}]}


@pytest.mark.parametrize(("documents", "events"), [
    pytest.param([chunk({"role": "assistant", "content": ""}), chunk({"content": "a"}, "stop")], [TextDelta("a"), Finished("stop")], id="text"),
    pytest.param([chunk({"reasoning_content": "a"}), chunk({"reasoning": "b"})], [ThinkingDelta("a"), ThinkingDelta("b")], id="both names of reasoning"),
    pytest.param([chunk({"content": [{"type": "text", "text": "a"}]})], [TextDelta("a")], id="Mistral's pieces"),
    pytest.param([chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}, {"type": "text", "text": "b"}]})],
                 [ThinkingDelta("a"), TextDelta("b")], id="Mistral's reasoning"),
    pytest.param([chunk(call(name="t", index=0)), chunk(call("{", index=0, id="late")), chunk(call("}", index=0, id="late"))],
                 [ToolStart(0, "late", "t"), ToolDelta(0, "{"), ToolDelta(0, "}")], id="an id that comes after the name"),
    pytest.param([chunk(call("{", "t", index=0)), chunk(call("}", index=0, id="late"))],
                 [ToolStart(0, "call_c_0", "t"), ToolDelta(0, "{"), ToolDelta(0, "}")], id="an id that comes after the arguments"),
    pytest.param([chunk(call(name="get_", index=0, id="a")), chunk(call(name="wea", index=0)), chunk(call(name="ther", index=0, id="a")), chunk(call("{}", index=0))],
                 [ToolStart(0, "a", "get_weather"), ToolDelta(0, "{}")], id="a name in pieces"),
    pytest.param([chunk(call(name="ge", index=0, id="a")), chunk(call(name="no", index=1, id="b")), chunk(call(name="t", index=0)), chunk(call("{}", "w", index=1)), chunk(call("{}", index=0))],
                 [ToolStart(1, "b", "now"), ToolDelta(1, "{}"), ToolStart(0, "a", "get"), ToolDelta(0, "{}")], id="two names in pieces at once"),
    pytest.param([chunk(call(name="t", index=0, id="a")), chunk(call(name="t", index=0, id="a")), chunk(call("{}", "t", index=0, id="a")), chunk(call(" ", "t", index=0, id="a"))],
                 [ToolStart(0, "a", "t"), ToolDelta(0, "{}"), ToolDelta(0, " ")], id="the name repeated"),
    pytest.param([chunk(call(name="t", index=0, id="a")), chunk({"content": "x"}), chunk({}, "tool_calls")],
                 [ToolStart(0, "a", "t"), TextDelta("x"), Finished("tool_use")], id="no arguments, then words"),
    pytest.param([chunk(call(name="t", index=0, id="a"), "stop")], [ToolStart(0, "a", "t"), Finished("stop")], id="no arguments at all"),
    pytest.param([chunk({"function_call": {"name": "t", "arguments": ""}}), chunk({"function_call": {"arguments": "{"}}), chunk({"function_call": {"arguments": "}"}}, "function_call")],
                 [ToolStart(0, "call_c_0", "t"), ToolDelta(0, "{"), ToolDelta(0, "}"), Finished("tool_use")], id="the older API's call"),
    pytest.param([chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "t", "arguments": {"x": 1}}}]})],
                 [ToolStart(0, "a", "t"), ToolDelta(0, '{"x":1}')], id="arguments as an object"),
    pytest.param([chunk(call(" ", "t", index=0, id="a")), chunk(call("null", index=0)), chunk({}, "tool_calls")], [ToolStart(0, "a", "t"), Finished("tool_use")], id="arguments that say nothing"),
    pytest.param([chunk({"refusal": "no"}, "content_filter")], [RefusalDelta("no"), Finished("content_filter")], id="a refusal"),
    pytest.param([chunk(call(name="t", index=0, id="a")), chunk(call("{", index=0)), chunk(call("}", index=0))],
                 [ToolStart(0, "a", "t"), ToolDelta(0, "{"), ToolDelta(0, "}")], id="a call in fragments"),
    pytest.param([chunk(call("{}", "t", index=0, id="a")), chunk(call("{}", "t", index=0, id="b"))],
                 [ToolStart(0, "a", "t"), ToolDelta(0, "{}"), ToolStart(1, "b", "t"), ToolDelta(1, "{}")], id="all with one index"),
    pytest.param([chunk(call("{}", "t", id="a"))], [ToolStart(0, "a", "t"), ToolDelta(0, "{}")], id="no index"),
    pytest.param([chunk(call("{}", "t", index=3, id="a"))], [ToolStart(0, "a", "t"), ToolDelta(0, "{}")], id="an index with gaps"),
    pytest.param([chunk(call(index=0, id="a")), chunk(call("{}", "t", index=0))], [ToolStart(0, "a", "t"), ToolDelta(0, "{}")], id="the name comes later"),
    pytest.param([chunk(call("{}", "t", index=0))], [ToolStart(0, "call_c_0", "t"), ToolDelta(0, "{}")], id="no id"),
    pytest.param([chunk(call(name="t", index=0, id="a")), chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]})],
                 [ToolStart(0, "a", "t"), ToolDelta(0, "{}")], id="the id repeated"),
])
def test_chunks_become_events(documents: list[dict[str, Any]], events: list[Event]) -> None:
    """Whatever a backend leaves out or repeats, every call has one number, id and name."""
    assert decoded(*documents) == [Started("c", "m", 5), *events]


@pytest.mark.parametrize(("message", "arguments"), [
    ({"function_call": {"name": "t", "arguments": '{"x": 1}'}}, '{"x": 1}'), ({"function_call": {"name": "t", "arguments": None}, "tool_calls": None}, "{}"),
    ({"tool_calls": [{"id": "call_0", "function": {"name": "t", "arguments": {"x": 1}}}]}, '{"x":1}'), ({"tool_calls": [{"function": {"name": "t", "arguments": {}}}]}, "{}"),
    ({"tool_calls": [{"function": {"name": "t", "arguments": "null"}}]}, "{}"), ({"tool_calls": [{"function": {"name": "t", "arguments": " "}}]}, "{}"),
])
def test_calls_of_a_whole_answer(message: dict[str, Any], arguments: str) -> None:
    """Those of the older API too, and arguments that are no text."""
    found = openai_answer.events({"id": "c", "choices": [{"message": message}]})
    assert found == [Started("c", "", 0), ToolStart(0, "call_0", "t"), ToolDelta(0, arguments)]


def test_running_totals() -> None:
    """Usage on every chunk is told each time and never added up."""
    found = decoded(chunk({"content": "a"}, usage={"prompt_tokens": 5, "completion_tokens": 1}), chunk({}, usage={"prompt_tokens": 5, "completion_tokens": 2}))
    assert [each.usage.output for each in found if isinstance(each, Used)] == [1, 2]
    assert isinstance(found[0], Used)    # before the start, so that a client is told at once


def test_ends_and_errors() -> None:
    """The end marker and an error event are events of their own."""
    decode = openai_answer.decoder()
    assert decode(Frame(b"", None, b"[DONE]")) == [Ended()]
    assert decode(Frame(b"", None, b'{"error":{"message":"x","code":"y"}}')) == [Failed("x", "y")]
    assert openai_answer.events({"error": {"message": "x", "code": 5}}) == [Failed("x", None)]


EVENTS: list[Event] = [
    Started("c", "m", 5), ThinkingDelta("hm"), ThinkingDelta(raw={"type": "thinking", "signature": "x"}), TextDelta("a"), TextDelta(""), RefusalDelta("no"),
    ToolStart(0, "i", "t"), ToolDelta(0, ""), ToolDelta(0, "{}"), Finished("stop"), Used(TokenUsage(uncached=1, cache_read=2, cache_write={"5m": 3}, output=4, reasoning=1)),
]
USAGE = {
    "prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def test_events_become_chunks() -> None:
    """Nothing empty is sent, reasoning and signed blocks have their own members, and usage comes last before the marker."""
    encoder = openai_answer.Encoder()
    found = data(b"".join(map(encoder.encode, EVENTS)) + encoder.end())
    deltas = [each["choices"][0]["delta"] for each in found[:-2]]
    assert [next(iter(each), None) for each in deltas] == ["role", "reasoning_content", "thinking_blocks", "content", "refusal", "tool_calls", "tool_calls", None]
    assert found[-3]["choices"][0]["finish_reason"] == "tool_calls"
    assert (found[-2]["choices"], found[-2]["usage"], found[-1]) == ([], USAGE, "[DONE]")
    assert {each["id"] for each in found[:-1]} == {"c"}


def test_events_become_an_answer() -> None:
    """The same events as a whole body."""
    body = orjson.loads(openai_answer.render_answer(EVENTS))
    message = body["choices"][0]["message"]
    assert body["usage"] == USAGE
    assert (message["content"], message["refusal"], message["reasoning_content"]) == ("a", "no", "hm")
    assert message["tool_calls"] == [{"id": "i", "type": "function", "function": {"name": "t", "arguments": "{}"}}]
    assert body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("events", "content", "finish"), [
    ([], "", "stop"), ([ToolStart(0, "i", "t"), ToolDelta(0, "{}")], None, "tool_calls"), ([TextDelta("a"), Finished("tool_use")], "a", "stop"),
    ([TextDelta("a"), Finished("length")], "a", "length"), ([Finished("refusal")], "", "content_filter"), ([Finished("stop_sequence")], "", "stop"), ([Finished("pause")], "", "stop"),
])
def test_content_and_finish_reason(events: list[Event], content: str | None, finish: str) -> None:
    """Content is null only beside tool calls, and the finish reason follows from what was sent."""
    choice = orjson.loads(openai_answer.render_answer(events))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish)
    encoder = openai_answer.Encoder(wants_usage=False)
    shown = data(b"".join(map(encoder.encode, events)) + encoder.end())
    assert shown[-2]["choices"][0]["finish_reason"] == finish
    assert sse.parse(sse.frame(orjson.dumps(shown[0]))) is not None


def test_reading_what_we_write() -> None:
    """A whole answer rendered and read gives the same events, as far as this shape has words for them."""
    events: list[Event] = [Started("c", "m", 5), ThinkingDelta("hm"), TextDelta("a"), ToolStart(0, "i", "t"), ToolDelta(0, "{}"), Finished("tool_use"),
                           Used(TokenUsage(uncached=1, cache_read=2, output=4))]
    assert openai_answer.events(orjson.loads(openai_answer.render_answer(events))) == events
