from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import BadRequest
from gateway.dialects import openai_chat


def sketch(**fields: Any) -> Any:
    return dialects.read(openai_chat.NAME, orjson.dumps({"model": "m", "messages": [], **fields}))


@pytest.mark.parametrize(("fields", "expected"), [
    ({}, (False, None, None, True)), ({"stream": True}, (True, None, None, False)), ({"stream": None, "max_tokens": None}, (False, None, None, True)),
    ({"stream": True, "stream_options": {"include_usage": True}}, (True, None, None, True)), ({"stream": True, "stream_options": {"include_usage": False}}, (True, None, None, False)),
    ({"stream": True, "stream_options": None}, (True, None, None, False)), ({"max_tokens": 5}, (False, 5, None, True)),
    ({"max_tokens": 5, "max_completion_tokens": 9}, (False, 9, None, True)), ({"max_tokens": 9, "max_completion_tokens": 5}, (False, 9, None, True)),
    ({"max_tokens": 9, "max_completion_tokens": 5, "stop": 5}, (False, 9, None, True)), ({"service_tier": "flex"}, (False, None, "flex", True)),
])
def test_sketch(fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """What the hot path needs, null as good as absent."""
    found = sketch(**fields)
    assert (found.stream, found.max_output_tokens, found.service_tier, found.wants_usage) == expected
    assert found.model == "m"


@pytest.mark.parametrize(("options", "param"), [(b'{"include_usage":"yes"}', "stream_options"), (b"5", "stream_options"), (b'{"include_usage":true,"include_usage":false}', "stream_options")])
def test_stream_options_are_checked(options: bytes, param: str) -> None:
    """A key twice inside is refused too, for we read there."""
    with pytest.raises(BadRequest) as caught:
        dialects.read(openai_chat.NAME, b'{"model":"m","messages":[],"stream":true,"stream_options":' + options + b"}")
    assert caught.value.param == param


@pytest.mark.parametrize(("options", "asked"), [
    (b"", b'{"include_usage":true}'), (b',"stream_options":null', b'{"include_usage":true}'), (b',"stream_options": {}', b'{"include_usage":true}'),
    (b',"stream_options":{ "include_obfuscation" : false }', b'{ "include_obfuscation" : false ,"include_usage":true}'),
    (b',"stream_options":{"include_usage": false, "x": 1}', b'{"include_usage": true, "x": 1}'),
])
def test_usage_is_asked_for_in_place(options: bytes, asked: bytes) -> None:
    """What else stands in the options stays as it was."""
    body = b'{"model":"m","messages":[],"stream":true' + options + b"}"
    assert openai_chat.usage_asked(body, dialects.read(openai_chat.NAME, body).spans) == asked


def test_our_ping_is_one_comment_line() -> None:
    """No blank line behind it: some libraries would take that for an event."""
    assert openai_chat.PING.startswith(b":")
    assert openai_chat.PING.count(b"\n") == 1


def test_look() -> None:
    """Usage, tier, model and finish reason of a whole answer."""
    body = {"id": "c", "model": "m", "service_tier": "flex", "choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    seen = openai_chat.look(orjson.dumps(body))
    assert (seen.response_id, seen.served_model, seen.served_tier, seen.finish_reason, seen.error) == ("c", "m", "flex", "length", None)
    assert openai_chat.look(orjson.dumps({**body, "usage": None})).usage is None


texts = st.sampled_from([None, "", "x", 5])
usages = st.none() | st.fixed_dictionaries({}, optional={
    "prompt_tokens": st.sampled_from([None, 5, -1, 2.0, 2**60]), "completion_tokens": st.sampled_from([None, 2]), "total_tokens": st.just(7),
    "prompt_tokens_details": st.sampled_from([None, {}, {"cached_tokens": 3}, {"cached_tokens": 9}]), "service_tier": texts,
})  # fmt: skip
choices = st.sampled_from([None, [], [{}], [{"finish_reason": "length", "index": 0}, {"finish_reason": None}], [{"finish_reason": 5}], [5], [{"usage": {"prompt_tokens": 1}}]])


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional={
    "id": texts, "model": texts, "service_tier": texts, "choices": choices, "usage": usages, "x_groq": st.just({"usage": {"prompt_tokens": 4}}),
    "error": st.sampled_from([None, "", {}, {"message": "no"}]),
}))  # fmt: skip
def test_the_short_look_sees_what_the_long_one_does(document: dict[str, Any]) -> None:
    """An answer with a letter beyond ASCII is decoded whole."""
    assert openai_chat.look(orjson.dumps(document)) == openai_chat.look(orjson.dumps({**document, "note": "\N{SNOWMAN}"}))


@pytest.mark.parametrize("extra", [{}, {"logprobs": "é"}], ids=["usual", "any"])
@pytest.mark.parametrize(("told", "tier"), [("flex", "flex"), ("auto", None), (None, None), (5, None)])
def test_auto_is_no_tier_that_was_served(told: object, tier: str | None, extra: dict[str, str]) -> None:
    """It repeats what was asked for; the price is that of the default tier, not unknown."""
    body = {"service_tier": told, "choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}, **extra}
    assert openai_chat.look(orjson.dumps(body)).served_tier == tier
