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
from gateway.dialects import anthropic_answer, sse
from gateway.dialects.sse import Frame, Malformed
from tests.dialects.play import wire


def decoded(raw: bytes) -> list[Event]:
    decode = anthropic_answer.decoder()
    frames = [frame for piece in sse.Splitter().feed(raw) if (frame := sse.parse(piece)) is not None]
    return [event for frame in frames for event in decode(frame)]


def test_frames_become_events() -> None:
    """Tool calls count from 0, signed blocks come whole when they close, and a call without arguments has an empty object."""
    found = decoded(wire("anthropic_messages/tools.sse"))
    assert [each for each in found if not isinstance(each, Used)] == [
        Started("msg_01X", "claude-sonnet-5"), ThinkingDelta("Two cities."),
        ThinkingDelta(raw={"type": "thinking", "thinking": "Two cities.", "signature": "U2ln"}),
        ThinkingDelta(raw={"type": "redacted_thinking", "data": "UmVk"}), TextDelta("Checking both."),
        ToolStart(0, "toolu_01", "weather"), ToolDelta(0, '{"city":'), ToolDelta(0, ' "Oslo"}'), ToolStart(1, "toolu_02", "now"), ToolDelta(1, "{}"),
        Finished("tool_use"), Ended(),
    ]
    used = [each for each in found if isinstance(each, Used)]
    assert [(each.usage.output, each.usage.flags, each.served_tier) for each in used] == [(3, ("output_provisional",), "standard"), (655, (), "standard")]
    assert used[-1].usage.cache_write == {"5m": 1800, "1h": 0}


def block(start: dict[str, Any], *parts: str) -> bytes:
    """One block of a stream, filled by `input_json_delta`."""
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}} for part in parts]
    frames = [{"type": "content_block_start", "index": 0, "content_block": start}, *deltas, {"type": "content_block_stop", "index": 0}]
    return b"".join(sse.frame(orjson.dumps(each)) for each in frames)


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_what_the_provider_calls_itself_is_no_call_of_ours(kind: str) -> None:
    """Its arguments belong to no tool of the client's, neither to one before it nor to none."""
    theirs, ours = {"type": kind, "id": "s", "name": "web_search", "input": {}}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    assert decoded(block(theirs, '{"query"', ':"x"}')) == []
    assert decoded(block(ours, "{}") + block(theirs, '{"query":"x"}')) == [ToolStart(0, "t", "f"), ToolDelta(0, "{}")]


@pytest.mark.parametrize(("start", "parts", "arguments"), [({"a": 1}, (), ['{"a":1}']), ({"a": 1}, ('{"a"', ":1}"), ['{"a"', ":1}"]), ({}, ("",), ["{}"]), ({}, (" ",), ["{}"])])
def test_arguments_stand_once(start: dict[str, Any], parts: tuple[str, ...], arguments: list[str]) -> None:
    """Whether they come with the block's start, in pieces, both or not at all."""
    found = decoded(block({"type": "tool_use", "id": "t", "name": "f", "input": start}, *parts))
    assert found == [ToolStart(0, "t", "f"), *[ToolDelta(0, text) for text in arguments]]


def frames(*documents: dict[str, Any]) -> bytes:
    return b"".join(sse.frame(orjson.dumps(each)) for each in documents)


def opened(index: int | None, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": name, "name": name, "input": {}, **more}}


def filled(index: int | None, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text}}


@pytest.mark.parametrize(("documents", "arguments"), [
    ([opened(0, "a"), opened(1, "b"), filled(0, "{"), filled(1, "[")], {0: "{", 1: "["}),
    ([opened(0, "a", input={"x": 1}), {"type": "message_delta", "delta": {}}], {0: '{"x":1}'}),
    ([opened(0, "a"), {"type": "message_stop"}], {0: "{}"}), ([opened(None, "a"), filled(None, "{}")], {0: "{}"}),
], ids=["two blocks at once", "a block that is never closed", "nothing but a start", "no numbers"])
def test_blocks_as_some_servers_send_them(documents: list[dict[str, Any]], arguments: dict[int, str]) -> None:
    """Fragments go to the block that they name, and a block that nobody closes is closed with the message."""
    found = [each for each in decoded(frames(*documents)) if isinstance(each, ToolDelta)]
    assert {each.index: each.arguments for each in found} == arguments


def test_an_error_event() -> None:
    """It has the message and its type."""
    assert anthropic_answer.decoder()(Frame(b"", "error", b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}')) == [Failed("busy", "overloaded_error")]


def test_a_whole_answer_becomes_events() -> None:
    """The same events for a body."""
    assert anthropic_answer.events(orjson.loads(wire("anthropic_messages/answer.json"))) == [
        Started("msg_01Y", "claude-sonnet-5"), ThinkingDelta("Hm."), ThinkingDelta(raw={"type": "thinking", "thinking": "Hm.", "signature": "U2ln"}),
        TextDelta("Checking."), ToolStart(0, "toolu_01", "weather"), ToolDelta(0, '{"city":"Oslo","n":1.0}'),
        Used(TokenUsage(uncached=12, cache_read=42000, cache_write={"5m": 1800, "1h": 0}, output=88, other={"web_search_requests": 2, "web_fetch_requests": 1}), "standard"),
        Finished("tool_use"),
    ]


@pytest.mark.parametrize(("events", "content", "reason"), [
    ([TextDelta("a"), Finished("stop")], [{"type": "text", "text": "a"}], "end_turn"),
    ([RefusalDelta("no"), Finished("stop")], [{"type": "text", "text": "no"}], "refusal"),
    ([ThinkingDelta("hm"), TextDelta("")], [{"type": "thinking", "thinking": "hm", "signature": ""}], "end_turn"),
    ([ToolStart(0, "a", "t"), ToolDelta(0, ""), Finished("stop")], [{"type": "tool_use", "id": "a", "name": "t", "input": {}}], "tool_use"),
    ([ToolStart(0, "a", "t"), ToolDelta(0, '{"x":'), Finished("length")], [{"type": "tool_use", "id": "a", "name": "t", "input": {}}], "max_tokens"),
    ([Finished("stop_sequence", "END")], [], "stop_sequence"),
])
def test_events_become_an_answer(events: list[Event], content: list[Any], reason: str) -> None:
    """Blocks in order, nothing empty, and the stop reason from what was sent."""
    body = orjson.loads(anthropic_answer.render_answer([Started("x", "m"), *events]))
    assert (body["content"], body["stop_reason"]) == (content, reason)
    assert body["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_arguments_that_are_no_object_are_malformed() -> None:
    """Unless the token limit cut them, they cannot be a tool's input."""
    with pytest.raises(Malformed):
        anthropic_answer.render_answer([ToolStart(0, "a", "t"), ToolDelta(0, '{"x":'), Finished("tool_use")])
