from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import BadRequest, UpstreamError
from gateway.dialects import openai_answer, responses_answer
from gateway.dialects.sse import Malformed
from tests.dialects.play import data, play, schema_of, sketch, wire
from tests.dialects.test_relay import STREAMS, of

OTHER = {"openai_chat": "anthropic_messages", "anthropic_messages": "openai_chat"}
ROADS = [(path, client) for path in STREAMS for client in dialects.TRANSLATED if client != of(path)]
ANSWERS = [(upstream, client) for upstream in dialects.TRANSLATED for client in dialects.TRANSLATED if client != upstream]


@pytest.fixture(autouse=True, scope="module")
def _one_moment() -> Iterator[None]:
    """Answers of backends that say no time of creation get the present one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (openai_answer, responses_answer):
            patch.setattr(module, "time", SimpleNamespace(time=lambda: 1_790_000_000.0))
        yield


@pytest.mark.parametrize(("path", "client"), ROADS)
@given(st.data())
def test_translated_streams_do_not_depend_on_cuts(path: str, client: str, draw: st.DataObject) -> None:
    """Wherever the network cuts, the client gets the same bytes, and usage is what the direct road reads."""
    raw = wire(path)
    cuts = tuple(draw.draw(st.sets(st.integers(1, len(raw) - 1), max_size=30)))
    out, relay = play(client, of(path), raw, cuts=cuts)
    whole, first = play(client, of(path), raw)
    assert data(out) == data(whole)
    direct = play(of(path), of(path), raw)[1]
    assert relay.observed == first.observed == direct.observed
    assert relay.complete
    assert relay.started


@pytest.mark.parametrize(("path", "client"), ROADS)
def test_translated_events_are_of_the_clients_api(path: str, client: str) -> None:
    """Every event that we write validates as a type of the vendor's own SDK."""
    schema = schema_of(client, stream=True)
    found = [each for each in data(play(client, of(path), wire(path))[0]) if each != "[DONE]"]
    assert found
    for each in found:
        schema.validate_python(each)


@pytest.mark.parametrize(("upstream", "client"), ANSWERS)
def test_what_a_translated_answer_says_is_what_the_direct_one_says(upstream: str, client: str) -> None:
    """Between any two dialects the answer is of the client's API; text, calls and counts are those of the backend."""
    raw = wire(f"{upstream}/answer.json")
    body, seen = dialects.answer(client, upstream, raw, sketch(client))
    schema_of(client, stream=False).validate_json(body)
    assert seen == dialects.answer(upstream, upstream, raw, sketch(upstream))[1]
    again = dialects.DIALECTS[client].look(body)
    assert again.usage is not None
    assert seen.usage is not None
    counted = (again.usage.input_total, again.usage.cache_read, again.usage.output, again.finish_reason)
    assert counted == (seen.usage.input_total, seen.usage.cache_read, seen.usage.output, seen.finish_reason)
    assert 'Checking.weather{"city":' in dialects.answer_text(client, body).replace(" ", "")


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages"])
def test_translated_answers_are_of_the_clients_api(dialect: str) -> None:
    """So do whole answers; text, tool call and counts arrive."""
    body, seen = dialects.answer(OTHER[dialect], dialect, wire(f"{dialect}/answer.json"), sketch(OTHER[dialect]))
    shown = orjson.loads(body)
    schema_of(OTHER[dialect], stream=False).validate_python(shown)
    assert seen == dialects.answer(dialect, dialect, wire(f"{dialect}/answer.json"), sketch(dialect))[1]
    if dialect == "openai_chat":
        assert [each["type"] for each in shown["content"]] == ["text", "tool_use"]
        assert b'"input":{"city": "Oslo", "n": 1.0}' in body    # the model's own bytes
        assert shown["usage"] == {"input_tokens": 320, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4992, "output_tokens": 41}
    else:
        message = shown["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("Checking.", "Hm.")
        assert message["thinking_blocks"] == [{"type": "thinking", "thinking": "Hm.", "signature": "U2ln"}]
        assert shown["choices"][0]["finish_reason"] == "tool_calls"
        assert shown["usage"]["prompt_tokens"] == 12 + 1800 + 42000


@pytest.mark.parametrize("ask", [True, False])
def test_one_usage_chunk_before_the_end_if_asked(ask: bool) -> None:
    """Cached and written tokens are part of the prompt there, and without asking there is no such chunk."""
    found = data(play("openai_chat", "anthropic_messages", wire("anthropic_messages/text.sse"), hide=not ask)[0])
    assert found[-1] == "[DONE]"
    usage = [each["usage"] for each in found[:-1] if each.get("usage")]
    assert len(usage) == ask
    if ask:
        assert found[-2]["choices"] == []
        assert (usage[0]["prompt_tokens"], usage[0]["completion_tokens"], usage[0]["total_tokens"]) == (43812, 655, 44467)
        assert usage[0]["prompt_tokens_details"] == {"cached_tokens": 42000, "cache_write_tokens": 1800}
        assert usage[0]["completion_tokens_details"] == {"reasoning_tokens": 200}


def test_the_end_is_held_back() -> None:
    """Finish reason, usage and marker come only when finish is called."""
    relay = dialects.relay("openai_chat", "anthropic_messages", sketch(), hide_usage=False)
    before = data(relay.feed(wire("anthropic_messages/text.sse")))
    assert [each["choices"][0]["finish_reason"] for each in before] == [None] * len(before)
    assert relay.ended
    assert [each if each == "[DONE]" else bool(each["choices"]) for each in data(relay.finish())] == [True, False, "[DONE]"]


@pytest.mark.parametrize("client", ["openai_chat", "anthropic_messages"])
def test_half_an_answer_ends_in_an_error(client: str) -> None:
    """A cut stream gets the client's own error event and no end marker."""
    upstream = OTHER[client]
    raw = wire(f"{upstream}/text.sse")
    out, relay = play(client, upstream, raw[:raw.index("漢".encode())])
    assert not relay.complete
    found = data(out + relay.fail(UpstreamError("cut off")))
    assert found[-1]["error"]["message"] == "cut off"
    assert all(each != "[DONE]" and each.get("type") != "message_stop" for each in found)
    assert relay.produced() == "Naïve "


def test_an_error_event_is_translated() -> None:
    """In the middle it ends the stream in the client's shape; as first event it reaches nobody."""
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    raw = wire("anthropic_messages/text.sse")
    out, relay = play("openai_chat", "anthropic_messages", raw[:raw.index(b"event: content_block_stop")] + error + raw)
    assert data(out)[-1]["error"]["message"] == "busy"
    assert relay.fail(UpstreamError("x")) == b""
    out, relay = play("openai_chat", "anthropic_messages", error)
    assert out == b""
    assert relay.observed.error == "busy"


@pytest.mark.parametrize("client", ["anthropic_messages", "openai_responses"])
def test_nothing_comes_behind_the_end_marker(client: str) -> None:
    """But counts, which are only kept."""
    late = b'data: {"choices":[{"delta":{"content":"zzz"}}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
    out, relay = play(client, "openai_chat", wire("openai_chat/text.sse") + late)
    assert b"zzz" not in out
    assert relay.observed.usage.input_total == 7


def test_an_error_event_is_one_of_the_vendors_own() -> None:
    """In the responses API it has fields that typed clients insist on."""
    relay = dialects.relay("openai_responses", "openai_chat", sketch("openai_responses"), hide_usage=False)
    (event,) = data(relay.fail(UpstreamError("x")))
    schema_of("openai_responses", stream=True).validate_python(event)


def test_an_error_in_a_whole_answer() -> None:
    """A 200 with an error inside is no answer."""
    body, seen = dialects.answer("anthropic_messages", "openai_chat", b'{"error":{"message":"boom","type":"server_error"}}', sketch())
    assert (body, seen.error) == (b"", "boom")
    assert dialects.answer("openai_chat", "openai_chat", b'{"error":{"message":"boom"}}', sketch())[1].error == "boom"


@pytest.mark.parametrize("raw", [b"", b"[]", b"<html>", b'{"id":'])
@pytest.mark.parametrize("client", ["openai_chat", "anthropic_messages"])
def test_an_answer_that_is_no_json_object_is_malformed(client: str, raw: bytes) -> None:
    """On both roads."""
    with pytest.raises(Malformed):
        dialects.answer(client, "openai_chat", raw, sketch())


@pytest.mark.parametrize("raw", [b"{}", b'{"detail":"Not Found"}', b'{"object":"error","message":"boom"}', b'{"choices":[]}'])
@pytest.mark.parametrize("upstream", dialects.TRANSLATED)
@pytest.mark.parametrize("client", dialects.TRANSLATED)
def test_an_object_that_is_no_answer_is_not_translated_into_one(client: str, upstream: str, raw: bytes) -> None:
    """It would reach the client as an answer that is empty and ended well. Within a dialect bytes stay what they are."""
    if client == upstream:
        assert dialects.answer(client, upstream, raw, sketch(client))[0] == raw
        return
    with pytest.raises(Malformed):
        dialects.answer(client, upstream, raw, sketch(client))


@pytest.mark.parametrize(("messages", "why"), [
    pytest.param([{"role": "user"}], None, id="no content is no text"),
    pytest.param(["hi"], "cannot be read: a field has a value of the wrong type", id="a message that is no object"),
    pytest.param([{"role": "assistant", "tool_calls": [{}]}], "cannot be read: the field 'function' is missing", id="a call without anything"),
    pytest.param([{"role": "user", "content": [{"type": "text"}]}], "cannot be read", id="a text part without text"),
])
def test_a_request_that_cannot_be_read_is_a_bad_request(messages: list[Any], why: str | None) -> None:
    """A shape that the API would refuse is the client's error, never ours."""
    body = orjson.dumps({"model": "m", "messages": messages})
    facts = dialects.read("openai_chat", body)
    if why is None:
        dialects.request("openai_chat", "anthropic_messages", body, facts, model="m", set_fields={}, ask_usage=True)
        return
    with pytest.raises(BadRequest, match=why):
        dialects.request("openai_chat", "anthropic_messages", body, facts, model="m", set_fields={}, ask_usage=True)


def test_what_a_whole_answer_says() -> None:
    """Text, reasoning, names and arguments, for an estimate where usage is missing."""
    assert dialects.answer_text("openai_chat", wire("openai_chat/answer.json")) == 'Checking.weather{"city": "Oslo", "n": 1.0}'
    assert dialects.answer_text("anthropic_messages", wire("anthropic_messages/answer.json")) == 'Hm.Checking.weather{"city":"Oslo","n":1.0}'
