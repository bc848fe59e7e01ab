from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import Event, Finished, RefusalDelta, Started, TextDelta, ThinkingDelta, ToolDelta, ToolStart, Used
from gateway.core.usage import TokenUsage
from gateway.dialects.anthropic_encoder import Encoder
from gateway.dialects.sse import Malformed
from tests.dialects.play import data


def encoded(*events: Event) -> list[dict[str, Any]]:
    encoder = Encoder()
    return data(b"".join(encoder.encode(each) for each in (Started("msg_1", "m"), *events)) + encoder.end())


def blocks(found: list[dict[str, Any]]) -> list[Any]:
    """The content as a client puts it together; checks that blocks open and close one at a time, numbered without gaps."""
    done: list[Any] = []
    live: int | None = None
    for each in found:
        if each["type"] == "content_block_start":
            assert live is None
            assert each["index"] == len(done)
            live, text, block = each["index"], "", each["content_block"]
        elif each["type"] == "content_block_delta":
            assert each["index"] == live
            text += each["delta"].get("text") or each["delta"].get("partial_json") or each["delta"].get("thinking") or ""
        elif each["type"] == "content_block_stop":
            assert each["index"] == live
            done.append((block["type"], block.get("id"), text))
            live = None
    assert live is None
    return done


TOOLS = st.lists(st.sampled_from(['{"city":"Oslo"}', '{"a":{"b":[1,"}"]}}', "{}", '{"x": "\\"}"}']), min_size=1, max_size=4)


@given(TOOLS, st.randoms(use_true_random=False), st.booleans())
def test_interleaved_fragments_end_up_in_their_own_blocks(arguments: list[str], chance: Any, text_first: bool) -> None:
    """However fragments of several calls are mixed, every call arrives whole in a block of its own, in order of their start."""
    queues = [[ToolStart(i, f"call_{i}", "t"), *(ToolDelta(i, c) for c in text)] for i, text in enumerate(arguments)]
    events: list[Event] = [TextDelta("On it.")] if text_first else []
    started = 0
    while any(queues):
        ready = [i for i, queue in enumerate(queues) if queue and i <= started]
        index = chance.choice(ready)
        events.append(queues[index].pop(0))
        started = max(started, index + 1)
    found = blocks(encoded(*events, Finished("tool_use")))
    expected = [("tool_use", f"call_{i}", text) for i, text in enumerate(arguments)]
    assert found == [("text", None, "On it.")] * text_first + expected


def test_calls_one_after_the_other_are_not_buffered() -> None:
    """A call whose arguments are whole gives way at once, so the next one streams."""
    encoder = Encoder()
    for event in (Started("x", "m"), ToolStart(0, "a", "t"), ToolDelta(0, "{}"), ToolStart(1, "b", "t")):
        encoder.encode(event)
    assert b'"partial_json":"{\\"k\\""' in encoder.encode(ToolDelta(1, '{"k"'))


def test_text_between_calls_keeps_its_place() -> None:
    """Words that come while a call is unfinished wait in a block of their own."""
    found = blocks(encoded(ThinkingDelta("Hm."), TextDelta("a"), TextDelta("b"), ToolStart(0, "x", "t"), ToolDelta(0, "{"), TextDelta("c"), TextDelta("d"), ToolDelta(0, "}")))
    assert found == [("thinking", None, "Hm."), ("text", None, "ab"), ("tool_use", "x", "{}"), ("text", None, "cd")]


def test_a_call_that_goes_on_after_its_end_is_malformed() -> None:
    """Nothing is lost in silence: only blanks may follow whole arguments."""
    encoder = Encoder()
    for event in (Started("x", "m"), ToolStart(0, "a", "t"), ToolDelta(0, "{}"), ToolStart(1, "b", "t"), ToolDelta(0, " ")):
        encoder.encode(event)
    with pytest.raises(Malformed):
        encoder.encode(ToolDelta(0, '"x"'))


@pytest.mark.parametrize(("events", "reason"), [
    ((TextDelta("a"), Finished("stop")), "end_turn"),
    ((TextDelta("a"),), "end_turn"),
    ((ToolStart(0, "a", "t"), Finished("stop")), "tool_use"),
    ((TextDelta("a"), Finished("tool_use")), "end_turn"),
    ((ToolStart(0, "a", "t"), Finished("length")), "max_tokens"),
    ((TextDelta("a"), Finished("content_filter")), "refusal"),
    ((RefusalDelta("no"), Finished("stop")), "refusal"),
    ((TextDelta("a"), Finished("pause")), "pause_turn"),
])
def test_the_stop_reason_follows_from_what_was_sent(events: tuple[Event, ...], reason: str) -> None:
    """A tool call labelled `stop` would never be run."""
    found = encoded(*events)
    assert found[-2]["delta"]["stop_reason"] == reason
    assert found[-1] == {"type": "message_stop"}


def test_usage_stands_in_its_own_classes() -> None:
    """The last totals win; what is known at the start is said at the start."""
    used = TokenUsage(uncached=5, cache_read=7, cache_write={"5m": 3}, output=2)
    encoder = Encoder()
    first = data(encoder.encode(Used(used)) + encoder.encode(Started("x", "m")))[0]
    assert first["message"]["usage"] == {"input_tokens": 5, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 2}
    encoder.encode(Used(TokenUsage(uncached=5, output=9)))
    assert orjson.loads(encoder.end().split(b"data: ")[1].split(b"\n")[0])["usage"]["output_tokens"] == 9
    assert encoded()[0]["message"]["usage"] == {"input_tokens": 0, "output_tokens": 0}
