from __future__ import annotations

from typing import Any

import anthropic.types
import openai.types
import orjson
import pytest

from gateway import dialects
from gateway.core.errors import BadRequest
from tests.dialects.play import wire

BODY = b'{ "model" : "m",\n "messages": [{"role": "user", "content": "h\\u00e9 \xc3\xa9"}],"stream":true , "vendor": [1.0, 1e3] }'


def request(body: bytes = BODY, **more: Any) -> bytes:
    keys = {"model": "m", "set_fields": {}, "ask_usage": False, **more}
    return dialects.request("openai_chat", "openai_chat", body, dialects.read("openai_chat", body), **keys)


def test_a_body_that_needs_no_change_is_the_same_bytes() -> None:
    """Not even copied."""
    assert request() is BODY


@pytest.mark.parametrize(("more", "old", "new"), [
    ({"model": "up/m-2"}, b'"m"', b'"up/m-2"'),
    ({"ask_usage": True}, b" }", b' ,"stream_options":{"include_usage":true}}'),
    ({"set_fields": {"service_tier": "flex"}}, b" }", b' ,"service_tier":"flex"}'),
    ({"set_fields": {"vendor": None}}, b' , "vendor": [1.0, 1e3]', b""),
    ({"set_fields": {"stream": False}}, b"true", b"false"),
])
def test_only_what_changes_is_spliced(more: dict[str, Any], old: bytes, new: bytes) -> None:
    """Spaces, escapes, number forms and unknown fields keep their bytes."""
    assert request(**more) == BODY.replace(old, new)


@pytest.mark.parametrize("upstream", ["openai_chat", "anthropic_messages"])
def test_fields_that_steer_never_travel(upstream: str) -> None:
    """Wherever they stand, on both roads."""
    body = b'{"api_base":"http://x","model":"m","extra_headers":{"a":1},"messages":[{"role":"user","content":"x"}],"api_key":"k","base_url":"u","api_version":"v","extra_body":{}}'
    out = dialects.request("openai_chat", upstream, body, dialects.read("openai_chat", body), model="m", set_fields={}, ask_usage=False)
    assert set(orjson.loads(out)) - {"max_tokens"} == {"model", "messages"}


@pytest.mark.parametrize("upstream", ["openai_chat", "anthropic_messages"])
def test_a_translated_body_asks_for_usage_and_has_the_backends_words(upstream: str) -> None:
    """The model's upstream name and the policy's fields are in it; OpenAI streams are always asked for usage."""
    client = {"openai_chat": "anthropic_messages", "anthropic_messages": "openai_chat"}[upstream]
    body = orjson.dumps({"model": "m", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "x"}]})
    out = orjson.loads(dialects.request(client, upstream, body, dialects.read(client, body), model="up", set_fields={"service_tier": "auto"}, ask_usage=False))
    assert (out["model"], out["service_tier"], out["stream"]) == ("up", "auto", True)
    assert ("stream_options" in out) is (upstream == "openai_chat")


@pytest.mark.parametrize(("dialect", "fields", "parts"), [
    ("openai_chat", {"messages": [{"role": "system"}, {"role": "user"}], "tools": [{"a": 1}]}, [[{"a": 1}], {"role": "system"}, {"role": "user"}]),
    ("anthropic_messages", {"messages": [{"role": "user"}], "system": "s", "tools": []}, [[], "s", {"role": "user"}]),
    ("openai_chat", {"messages": []}, []),
])
def test_parts_stand_in_the_order_in_which_they_are_rendered(dialect: str, fields: dict[str, Any], parts: list[Any]) -> None:
    """Tools, system, messages, wherever they stand in the body."""
    body = orjson.dumps({"model": "m", **fields}, option=orjson.OPT_INDENT_2)
    facts = dialects.read(dialect, body)
    assert [orjson.loads(body[part.start : part.end]) for part in facts.parts] == parts


def test_count_text() -> None:
    """Tools, system and messages are counted."""
    body = orjson.dumps({"model": "m", "system": "be", "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "t"}]})
    assert list(dialects.count_text("anthropic_messages", body, dialects.read("anthropic_messages", body))) == ['[{"name":"t"}]', "be", "hi"]


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"]])
def test_models(names: list[str]) -> None:
    """Both SDKs read our list."""
    found = orjson.loads(dialects.models_body("openai_chat", names))
    assert [openai.types.Model.model_validate(each).id for each in found["data"]] == names
    found = orjson.loads(dialects.models_body("anthropic_messages", names))
    assert [anthropic.types.ModelInfo.model_validate(each).id for each in found["data"]] == names
    assert found["last_id"] == (names[-1] if names else None)


def test_an_answer_of_the_same_dialect_is_the_same_object(dialect: str) -> None:
    """Not parsed and written again."""
    body = wire(f"{dialect}/answer.json")
    shown, seen = dialects.answer(dialect, dialect, body, dialects.read(dialect, b'{"model":"m","messages":[]}'))
    assert shown is body
    assert seen.usage is not None
    assert seen.finish_reason == "tool_use"


def test_depth_is_a_bad_request_on_both_roads() -> None:
    """Nesting with siblings passes the quick check and must not break the slow road."""
    body = b'{"model":"m","messages":[{"role":"user","content":' + b"[1," * 700 + b"1" + b",1]" * 700 + b"}]}"
    with pytest.raises(BadRequest):
        dialects.request("openai_chat", "anthropic_messages", body, dialects.read("openai_chat", body), model="m", set_fields={}, ask_usage=False)
