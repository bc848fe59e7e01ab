"""Requests: what is accepted, and which parameter is named when one is not."""

from __future__ import annotations

from typing import Any

import pytest

from inference.chat import ChatRequest, encode_prompt, read_chat
from inference.parameters import ApiError
from inference.scheduler import FAST, STANDARD, Lane
from tests.inference.tiny import tokenizer

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def _read(**body: Any) -> ChatRequest:
    return read_chat({"messages": [USER]} | body, tokenizer(), 512)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0]"),
        ({"n": 2}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"service_tier": "golden"}, "service_tier"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}}, "response_format"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_named(body: dict[str, Any], param: str) -> None:
    """The error is a 400 in OpenAI's shape and says which parameter it is about."""
    with pytest.raises(ApiError) as error:
        _read(**body)
    told = error.value.body()["error"]
    assert (error.value.status, told["param"], told["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        ("priority", FAST),
        ("fast", FAST),
        ("default", STANDARD),
        ("auto", STANDARD),
        ("standard", STANDARD),
        ("flex", STANDARD),
        (None, STANDARD),
    ],
)
def test_the_tier_chooses_the_lane(tier: str | None, lane: Lane) -> None:
    """Two lanes, named by the request's own field."""
    assert _read(service_tier=tier).ask.lane is lane


def test_output_is_capped_by_the_context() -> None:
    """A prompt that leaves room is served, however much is asked for; one that leaves none is refused before any work."""
    size = len(_read().ask.prompt)
    assert _read(max_tokens=10_000).ask.most == 512 - size
    assert _read(max_tokens=5).ask.most == _read(max_completion_tokens=5, max_tokens=9).ask.most == 5
    assert _read(messages=[{"role": "user", "content": "x" * (511 - size + 2)}]).ask.most == 1
    with pytest.raises(ApiError) as error:
        _read(messages=[{"role": "user", "content": "x" * (511 - size + 3)}])
    assert error.value.code == "context_length_exceeded"


def test_unknown_fields_are_ignored() -> None:
    """What we do not know may be meant for others."""
    assert _read(user="me", metadata={"a": 1}, store=False, whatever=[1]).ask.prompt == _read().ask.prompt


def test_messages_of_every_kind_become_turns() -> None:
    """System with tools, parts, calls and results are rendered; tool_choice none hides the tools."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    text = tokenizer().decode(encode_prompt({"messages": messages, "tools": [TOOL]}, tokenizer()))
    assert text.startswith("system\nBe brief.\n\nTools.")
    assert "\nf()\nuser\nHi\n" in text
    assert (
        'assistant\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\nuser\n<tool_response>\n42\n</tool_response>'
        in text
    )
    hidden = tokenizer().decode(
        encode_prompt({"messages": messages, "tools": [TOOL], "tool_choice": "none"}, tokenizer())
    )
    assert "Tools." not in hidden


def test_a_forced_call_begins_the_answer() -> None:
    """The opening stands behind the answer's header, so the model goes on from it."""
    request = _read(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
    assert tokenizer().decode(request.ask.prompt).endswith('assistant\n<tool_call>{"name": "f", "arguments": ')
    assert request.forced is not None
    assert request.ask.cut is not None
