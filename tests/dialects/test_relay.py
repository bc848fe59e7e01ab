from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import UpstreamError
from gateway.dialects.sse import Malformed
from tests.dialects.play import data, play, sketch, wire

STREAMS = [
    "openai_chat/text.sse", "openai_chat/tools.sse", "openai_chat/azure.sse", "openai_chat/kimi.sse", "openai_chat/groq.sse",
    "openai_chat/vllm.sse", "anthropic_messages/text.sse", "anthropic_messages/tools.sse",
    "openai_responses/text.sse", "openai_responses/tools.sse",
]
CHUNK = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"A"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"worker lost","type":"server_error","code":500}}\n\n'


def of(path: str) -> str:
    return path.partition("/")[0]


@pytest.mark.parametrize("path", STREAMS)
@given(st.data())
def test_bytes_and_usage_do_not_depend_on_cuts(path: str, draw: st.DataObject) -> None:
    """Wherever the network cuts, the client gets exactly the upstream's bytes and the same is observed."""
    raw = wire(path)
    cuts = tuple(draw.draw(st.sets(st.integers(1, len(raw) - 1), max_size=30)))
    whole, first = play(of(path), of(path), raw)
    out, relay = play(of(path), of(path), raw, cuts=cuts)
    assert out == whole == raw
    assert relay.observed == first.observed
    assert relay.produced() == first.produced()
    assert relay.complete
    assert relay.started


@pytest.mark.parametrize("path", STREAMS)
@given(st.data())
def test_hiding_usage_does_not_depend_on_cuts(path: str, draw: st.DataObject) -> None:
    """Without usage too, all cuts give the same bytes, and what was observed is what it is with usage."""
    raw = wire(path).replace(b"\n", draw.draw(st.sampled_from([b"\n", b"\r\n", b"\r"])))
    cuts = tuple(draw.draw(st.sets(st.integers(1, len(raw) - 1), max_size=30)))
    whole, first = play(of(path), of(path), raw, hide=True)
    out, relay = play(of(path), of(path), raw, hide=True, cuts=cuts)
    assert out == whole
    assert relay.observed == first.observed == play(of(path), of(path), raw)[1].observed


@pytest.mark.parametrize(("path", "usage", "model", "tier", "finish"), [
    ("openai_chat/text.sse", (320, 4992, 41), "gpt-5.4-2026-03-05", "default", "stop"),
    ("openai_chat/tools.sse", (320, 4992, 41), "gpt-5.4-2026-03-05", "default", "tool_use"),
    ("openai_chat/azure.sse", (320, 4992, 41), "gpt-5.4-2026-03-05", "default", "stop"),
    ("openai_chat/kimi.sse", (256, 4864, 64), "kimi-k2.5", None, "stop"),
    ("openai_chat/groq.sse", (92, 4608, 260), "openai/gpt-oss-120b", None, "stop"),
    ("openai_chat/vllm.sse", (24, 2976, 2), "local/model", None, "stop"),
    ("anthropic_messages/text.sse", (12, 42000, 655), "claude-sonnet-5", "standard", "stop"),
    ("anthropic_messages/tools.sse", (12, 42000, 655), "claude-sonnet-5", "standard", "tool_use"),
    ("openai_responses/text.sse", (266, 2944, 222), "gpt-5.4-mini", "default", "stop"),
    ("openai_responses/tools.sse", (320, 4992, 41), "gpt-5.4-2026-03-05", "default", "tool_use"),
])
def test_what_is_read_off_the_side(path: str, usage: tuple[int, int, int], model: str, tier: str | None, finish: str) -> None:
    """Usage, model, tier and finish reason are found wherever each provider puts them."""
    seen = play(of(path), of(path), wire(path))[1].observed
    assert (seen.usage.uncached, seen.usage.cache_read, seen.usage.output) == usage
    assert (seen.served_model, seen.served_tier, seen.finish_reason, seen.error) == (model, tier, finish, None)
    assert seen.usage.flags == ()


def test_a_usage_chunk_is_hidden_from_a_client_that_did_not_ask() -> None:
    """The chunk with usage and no choices goes; null usage stays; figures beside a choice become null."""
    out, relay = play("openai_chat", "openai_chat", wire("openai_chat/text.sse"), hide=True)
    assert out == b"".join(part for part in wire("openai_chat/text.sse").split(b"(?<=\n\n)")).replace(
        re.search(rb'data: [^\n]*"choices":\[\][^\n]*\n\n', wire("openai_chat/text.sse")).group(), b"")    # type: ignore[union-attr]
    assert relay.observed.usage.output == 41
    shown = data(play("openai_chat", "openai_chat", wire("openai_chat/vllm.sse"), hide=True)[0])
    assert [each["usage"] for each in shown[:-1]] == [None] * 3
    azure = data(play("openai_chat", "openai_chat", wire("openai_chat/azure.sse"), hide=True)[0])
    assert azure[0]["prompt_filter_results"]
    assert len(azure) == 4


@pytest.mark.parametrize("end", [LAST[:-1], LAST[:-2], LAST])
def test_a_finish_reason_ends_an_answer_that_lacks_the_end_marker(end: bytes) -> None:
    """A last frame without its line ends still counts, and the client gets the marker."""
    out, relay = play("openai_chat", "openai_chat", CHUNK + end)
    assert out == CHUNK + LAST + DONE
    assert relay.complete
    assert relay.observed.usage is None


def test_an_anthropic_answer_gets_its_end_marker() -> None:
    """The same for `message_stop`, once a stop reason was seen."""
    raw = wire("anthropic_messages/text.sse")
    cut = raw[:raw.index(b"event: message_stop")]
    out, relay = play("anthropic_messages", "anthropic_messages", cut)
    assert out == raw
    assert relay.complete


@pytest.mark.parametrize("raw", [CHUNK, CHUNK + LAST[:-20], CHUNK + b": ping\n", CHUNK + CHUNK[:40]])
def test_half_an_answer_never_looks_whole(raw: bytes) -> None:
    """Without a finish reason there is no end marker: whole frames, then the error, and no half frame in between."""
    out, relay = play("openai_chat", "openai_chat", raw)
    assert not relay.complete
    found = data(out + relay.fail(UpstreamError("cut off")))
    assert found[-1]["error"]["message"] == "cut off"
    assert "[DONE]" not in found
    assert relay.fail(UpstreamError("again")) == b""


def test_the_end_is_held_back() -> None:
    """Everything before the end marker goes out at once, the marker only when finish is called, and nothing behind it."""
    relay = dialects.relay("openai_chat", "openai_chat", sketch(), hide_usage=False)
    assert relay.feed(CHUNK + LAST + USAGE + DONE + CHUNK) == CHUNK + LAST + USAGE
    assert relay.ended
    assert relay.finish() == DONE


def test_usage_behind_the_end_marker_is_still_metered() -> None:
    """A backend that sends its counters last loses nothing."""
    out, relay = play("openai_chat", "openai_chat", CHUNK + LAST + DONE + USAGE)
    assert out == CHUNK + LAST + DONE
    assert relay.observed.usage.output == 2


@pytest.mark.parametrize(("before", "dialect", "error"), [
    (b"", "openai_chat", ERROR),
    (b": thinking\n\n", "openai_chat", ERROR),
    (b"", "anthropic_messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"worker lost"}}\n\n'),
    (b'event: ping\ndata: {"type":"ping"}\n\n', "anthropic_messages", b'event: error\ndata: {"type":"error","error":{"type":"x","message":"worker lost"}}\n\n'),
])
def test_an_error_as_first_event_reaches_nobody(before: bytes, dialect: str, error: bytes) -> None:
    """A 200 that begins with an error can still be tried elsewhere: no byte has gone out, the error is there to see."""
    relay = dialects.relay(dialect, dialect, sketch(dialect), hide_usage=True)
    assert relay.feed(before) == b""
    assert relay.feed(error) == b""
    assert relay.observed.error == "worker lost"
    assert relay.ended
    assert not relay.complete
    assert relay.finish() == b""


def test_an_error_in_the_middle_is_the_last_that_is_relayed() -> None:
    """The backend's own error event passes as it came; no end marker and no second error follow."""
    out, relay = play("openai_chat", "openai_chat", CHUNK + ERROR + CHUNK + DONE)
    assert out == CHUNK + ERROR
    assert relay.observed.error == "worker lost"
    assert not relay.complete
    assert relay.fail(UpstreamError("cut")) == b""


def test_an_event_that_is_no_json_is_malformed() -> None:
    """What came before it still reaches the client, then an error."""
    relay = dialects.relay("openai_chat", "openai_chat", sketch(), hide_usage=False)
    with pytest.raises(Malformed):
        relay.feed(CHUNK + b"data: {not json\n\n" + DONE)
    assert relay.fail(UpstreamError("broken")).startswith(CHUNK + b'data: {"error":')
    assert relay.produced() == "A"


@pytest.mark.parametrize(("raw", "shown"), [
    pytest.param(CHUNK + b"data:\n\n" + LAST, CHUNK + b":\n" + LAST, id="empty data"),
    pytest.param(CHUNK + b"data: :\n\n" + LAST, CHUNK + b":\n" + LAST, id="a colon"),
    pytest.param(CHUNK + b"event: ping\n\n" + LAST, CHUNK + b":\n" + LAST, id="only a name"),
    pytest.param(CHUNK + b": hi\n\n" + LAST, CHUNK + b": hi\n\n" + LAST, id="a comment passes as it came"),
    pytest.param(b"id: 1\n" + CHUNK + b": hi\n\n" + LAST, b"id: 1\n" + CHUNK + b": hi\n" + LAST, id="no blank line after an id was seen"),
])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_keep_alives_never_become_empty_events(raw: bytes, shown: bytes, step: int) -> None:
    """A library that hands on an event at every blank line parses no empty text."""
    assert play("openai_chat", "openai_chat", raw, cuts=tuple(range(step, len(raw), step)))[0] == shown + DONE


def test_all_choices_must_finish() -> None:
    """With two answers in one stream, the first finish reason is not the end."""
    second = CHUNK.replace(b'"index":0', b'"index":1')
    assert not play("openai_chat", "openai_chat", CHUNK + second + LAST)[1].complete
    assert play("openai_chat", "openai_chat", CHUNK + second + LAST + LAST.replace(b'"index":0', b'"index":1'))[1].complete


def test_the_first_token_is_no_empty_text() -> None:
    """A chunk with a role and no text is not the first token."""
    relay = dialects.relay("openai_chat", "openai_chat", sketch(), hide_usage=False)
    relay.feed(CHUNK.replace(b'"A"', b'""'))
    assert not relay.started
    relay.feed(CHUNK)
    assert relay.started


def test_a_long_answer_is_kept_in_full() -> None:
    """What was produced is whole for an estimate, also past the memory for raw frames."""
    relay = dialects.relay("openai_chat", "openai_chat", sketch(), hide_usage=False)
    chunk = CHUNK.replace(b'"A"', orjson.dumps("x" * 1000))
    for _ in range(2500):
        relay.feed(chunk)
    assert len(relay.produced()) == 2_500_000


@pytest.mark.parametrize(("path", "text"), [
    ("openai_chat/text.sse", "Naïve 漢字 🚀 \"usage\": {\"error\": 1} done\n\n"),
    ("openai_chat/tools.sse", 'weatherstock{"city":{"sym"Oslo"}bol":"ABC"}'),
    ("anthropic_messages/tools.sse", 'Two cities.Checking both.weather{"city": "Oslo"}now'),
])
def test_what_was_produced(path: str, text: str) -> None:
    """Text, thinking, names and arguments of tool calls, in the order in which they came."""
    found = play(of(path), of(path), wire(path))[1].produced()
    assert sorted(found) == sorted(text) if "stock" in text else found == text
