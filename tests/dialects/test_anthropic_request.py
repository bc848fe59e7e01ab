from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given

from gateway.core.errors import BadRequest
from gateway.core.prompt import Document, Image, Message, Prompt, Text, Thinking, Tool, ToolChoice, ToolResult, ToolUse
from gateway.dialects import anthropic_request
from tests.dialects.prompts import anthropic_prompts


def render(*messages: Message, **fields: Any) -> dict[str, Any]:
    wire = anthropic_request.render_request(Prompt(**{"model": "m", "messages": messages, "max_output_tokens": 9, **fields}))
    return orjson.loads(msgspec.json.encode(wire))    # type: ignore[no-any-return]


def user(*parts: Any) -> Message:
    return Message(role="user", parts=tuple(Text(text=part) if isinstance(part, str) else part for part in parts))


@given(anthropic_prompts())
def test_round_trip(prompt: Prompt) -> None:
    """What is rendered is read back as the same prompt."""
    assert anthropic_request.parse_request(msgspec.json.encode(anthropic_request.render_request(prompt))) == prompt


def test_results_of_parallel_calls_are_one_turn_before_any_text() -> None:
    """Neighbours of one role are one turn, and results come first in it, in their order."""
    wire = render(user("a"), user("b"), user(ToolResult(id="2", parts=(Text(text="24C"),))), user(ToolResult(id="1", parts=())), user("Well?"))
    content = wire["messages"][0]["content"]
    assert len(wire["messages"]) == 1
    assert [each.get("tool_use_id") or each["text"] for each in content] == ["2", "1", "a", "b", "Well?"]
    assert content[1] == {"type": "tool_result", "tool_use_id": "1"}


def test_system_messages_stand_before_the_conversation() -> None:
    """All of them, in order, with their cache markers; none is lost and none is left in between."""
    marked = Text(text="b", cache={"type": "ephemeral"})
    wire = render(Message(role="system", parts=(Text(text="a"),)), user("x"), Message(role="system", parts=(marked,)), user("y"))
    assert wire["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert [each["role"] for each in wire["messages"]] == ["user"]
    assert render(Message(role="system", parts=(Text(text="a"),)))["system"] == "a"


@pytest.mark.parametrize("words", ["", " ", "\n\t"])
def test_no_empty_text(words: str) -> None:
    """The API refuses blank text blocks, and clients send them beside tool calls."""
    call = ToolUse(id="a", name="t", arguments="")
    wire = render(user("go"), Message(role="assistant", parts=(Text(text=words), call)), user(words))
    assert wire["messages"] == [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "t", "input": {}}]}]


def test_thinking_goes_back_unchanged() -> None:
    """Signed and redacted blocks, with empty text too, and in front of what followed them."""
    raws = [{"type": "thinking", "thinking": "", "signature": "x"}, {"type": "redacted_thinking", "data": "y"}]
    wire = render(user("go"), Message(role="assistant", parts=(*(Thinking(raw=raw) for raw in raws), Text(text="Hi"))))
    assert wire["messages"][1]["content"] == [*raws, {"type": "text", "text": "Hi"}]


def test_arguments_keep_their_bytes() -> None:
    """Key order, number forms and big integers are as the model wrote them."""
    text = '{"b": 1.0, "a": 123456789012345678901234567890, "é": "\\u00e9"}'
    raw = msgspec.json.encode(anthropic_request.render_request(Prompt(model="m", messages=(
        user("x"), Message(role="assistant", parts=(ToolUse(id="a", name="t", arguments=text),))))))
    assert text.encode() in raw


@pytest.mark.parametrize(("choice", "single", "wire"), [
    (None, None, None), (None, True, None), (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
    (ToolChoice(mode="none"), None, {"type": "none"}), (ToolChoice(mode="none"), False, {"type": "none"}),
    (ToolChoice(mode="required"), None, {"type": "any"}), (ToolChoice(mode="auto"), True, {"type": "auto"}),
    (ToolChoice(mode="named", name="t"), False, {"type": "tool", "name": "t", "disable_parallel_tool_use": True}),
])
def test_tool_policy_survives(choice: ToolChoice | None, single: bool | None, wire: dict[str, Any] | None) -> None:
    """None stays none, one stays one; the two together are refused by the provider, so the flag goes."""
    tools = (Tool(name="t", description=None, parameters=None),)
    found = render(user("x"), tools=tools, tool_choice=choice, parallel_tool_calls=single)
    assert found.get("tool_choice") == wire
    assert found["tools"][0]["input_schema"] == {"type": "object", "properties": {}}
    assert "tool_choice" not in render(user("x"), tool_choice=choice, parallel_tool_calls=single)


@pytest.mark.parametrize(("fields", "wire"), [
    ({"extra": {"reasoning_effort": "high"}}, {"output_config": {"effort": "high"}}),
    ({"extra": {"reasoning_effort": "none"}}, {"thinking": {"type": "disabled"}}),
    ({"extra": {"n": 1, "logprobs": False, "presence_penalty": 0, "store": False, "prompt_cache_key": "x", "service_tier": "flex"}}, {}),
    ({"extra": {"top_k": 5, "cache_control": {"type": "ephemeral"}}}, {"top_k": 5, "cache_control": {"type": "ephemeral"}}),
    ({"user": "u1"}, {"metadata": {"user_id": "u1"}}), ({"extra": {"safety_identifier": "u2"}}, {"metadata": {"user_id": "u2"}}),
    ({"stop": ("a",), "temperature": 1.0}, {"stop_sequences": ["a"], "temperature": 1.0}),
    ({"response_schema": {"name": "x", "schema": {"b": 1, "a": 2}}}, {"output_config": {"format": {"type": "json_schema", "schema": {"b": 1, "a": 2}}}}),
    ({"extra": {"metadata": {"app": "x"}}}, {}),
    ({"tools": (Tool(name="t", description=None, parameters={"properties": {"a": {}}}),)}, {"tools": [{"name": "t", "input_schema": {"type": "object", "properties": {"a": {}}}}]}),
    ({"max_output_tokens": None}, {"max_tokens": anthropic_request.DEFAULT_MAX_TOKENS}),
])
def test_fields_with_a_counterpart(fields: dict[str, Any], wire: dict[str, Any]) -> None:
    """Each field finds its place; what says what happens anyway is left out."""
    assert render(user("x"), **fields) == {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **wire}


@pytest.mark.parametrize(("fields", "param"), [
    ({"extra": {"n": 2}}, "n"), ({"extra": {"logprobs": True}}, "logprobs"), ({"extra": {"logit_bias": {"5": 1}}}, "logit_bias"),
    ({"extra": {"modalities": ["text", "audio"]}}, "modalities"), ({"extra": {"something_new": 1}}, "something_new"), ({"temperature": 1.5}, "temperature"),
    ({"json_object": True}, "response_format"),
    ({"messages": (user(Image(url="data:text/plain,x")),)}, "messages"),
    ({"messages": (Message(role="assistant", parts=(Image(url="https://x"),)),)}, "messages"),
    ({"messages": (Message(role="assistant", parts=(Document(url="https://x"),)),)}, "messages"),
    ({"messages": (Message(role="assistant", parts=(ToolUse(id="a", name="t", arguments="[1]"),)),)}, "messages"),
    ({"messages": (Message(role="assistant", parts=(ToolUse(id="a", name="t", arguments='{"a":'),)),)}, "messages"),
])
def test_fields_without_one_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Nothing that changes an answer is dropped in silence."""
    with pytest.raises(BadRequest) as caught:
        render(**{"messages": (user("x"),), **fields})
    assert caught.value.param == param


@pytest.mark.parametrize(("fields", "param"), [
    ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "messages[0].content[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    ({"tools": [{"name": "t", "input_schema": {}, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
    ({"tool_choice": {"type": "what"}}, "tool_choice"),
])
def test_parts_without_a_word_are_refused_by_place(fields: dict[str, Any], param: str) -> None:
    """The error says where it stands."""
    with pytest.raises(BadRequest) as caught:
        anthropic_request.parse_request(orjson.dumps({"model": "m", "max_tokens": 5, "messages": [], **fields}))
    assert caught.value.param == param
