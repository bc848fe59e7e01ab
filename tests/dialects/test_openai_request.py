from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given

from gateway.core.errors import BadRequest
from gateway.core.prompt import Image, Message, Prompt, Text, Thinking, ToolResult, ToolUse
from gateway.dialects import openai_request
from tests.dialects.prompts import openai_prompts


def render(*messages: Message, **fields: Any) -> dict[str, Any]:
    wire = openai_request.render_request(Prompt(**{"model": "m", "messages": messages, **fields}))
    return orjson.loads(orjson.dumps(wire))    # type: ignore[no-any-return]


@given(openai_prompts())
def test_round_trip(prompt: Prompt) -> None:
    """What is rendered is read back as the same prompt."""
    again = openai_request.parse_request(msgspec.json.encode(openai_request.render_request(prompt)))
    assert replace(again, wants_usage=prompt.wants_usage) == prompt


def test_a_picture_in_a_tool_result_moves_behind_all_results() -> None:
    """Tool messages are text only and must stand together, so the picture follows in a user message, before the user's own words."""
    picture = Image(url="data:image/png;base64,xx")
    wire = render(Message(role="user", parts=(
        ToolResult(id="a", parts=(Text(text="taken"), picture)), ToolResult(id="b", parts=(Text(text="3C"),)), Text(text="Well?"))))
    assert [each["role"] for each in wire["messages"]] == ["tool", "tool", "user"]
    assert [part["type"] for part in wire["messages"][2]["content"]] == ["image_url", "text"]


@pytest.mark.parametrize(("parts", "content"), [((), "Error"), ((Text(text="no such file"),), "Error: no such file"), ((Text(text="Error 5"),), "Error 5")])
def test_a_failed_tool_says_so_in_words(parts: tuple[Text, ...], content: str) -> None:
    """There is no mark for it in this API."""
    assert render(Message(role="user", parts=(ToolResult(id="a", parts=parts, is_error=True),)))["messages"][0]["content"] == content


def test_another_vendors_blocks_stay_behind() -> None:
    """Signed thinking and the billing line mean nothing here; empty arguments are an empty object; cache markers are not written."""
    wire = render(
        Message(role="system", parts=(Text(text="x-anthropic-billing-header: cch=1"), Text(text="Be brief.", cache={"type": "ephemeral"}))),
        Message(role="assistant", parts=(Thinking(raw={"type": "thinking", "thinking": "", "signature": "x"}), ToolUse(id="a", name="t", arguments=""))))
    assert wire["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}]},
    ]


@pytest.mark.parametrize(("model", "field"), [
    ("gpt-5.4", "max_completion_tokens"), ("o3-mini", "max_completion_tokens"), ("openai/gpt-6-sol", "max_completion_tokens"),
    ("gpt-4o", "max_tokens"), ("m-gpt", "max_tokens"), ("deepseek-v4", "max_tokens"), ("olmo", "max_tokens"),
])
def test_the_limit_has_the_name_that_the_model_knows(model: str, field: str) -> None:
    """Newer models refuse the old name, other servers may not know the new one."""
    assert render(model=model, max_output_tokens=7)[field] == 7


@pytest.mark.parametrize(("extra", "wire"), [
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"reasoning_effort": "low"}),
    ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, {"reasoning_effort": "high"}),
    ({"thinking": {"type": "adaptive"}}, {}), ({"thinking": {"type": "disabled"}}, {}),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
    ({"service_tier": "auto", "cache_control": {"type": "ephemeral"}}, {}), ({"seed": 5}, {"seed": 5}),
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}), ({"context_management": {}, "mcp_servers": []}, {}), ({"client_metadata": {"a": "b"}}, {}),
])
def test_what_has_a_counterpart_is_passed_on(extra: dict[str, Any], wire: dict[str, Any]) -> None:
    """Thinking becomes effort; wishes that the broker decides are its own affair."""
    assert render(extra=extra) == {"model": "m", "messages": [], **wire}


@pytest.mark.parametrize("extra", [
    {"context_management": {"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]}}, {"context_management": {"edits": [5]}},
    {"context_management": {"keep": "all"}}, {"mcp_servers": [{"url": "https://x"}]},
])
def test_what_would_edit_the_prompt_is_refused(extra: dict[str, Any]) -> None:
    """The handling of thinking is not: it stays here anyway."""
    with pytest.raises(BadRequest) as caught:
        render(extra=extra)
    assert caught.value.param == next(iter(extra))


@pytest.mark.parametrize("name", ["top_k", "mcp_servers", "container", "context_management", "inference_geo", "something_new"])
def test_what_has_none_is_refused_by_name(name: str) -> None:
    """Nothing that changes an answer is dropped in silence."""
    with pytest.raises(BadRequest) as caught:
        render(extra={name: "x"})
    assert caught.value.param == name


@pytest.mark.parametrize(("message", "param"), [
    ({"role": "function", "content": "x"}, "messages[0].role"),
    ({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_audio"}]}, "messages[0].content[1]"),
    ({"role": "assistant", "function_call": {"name": "x"}}, "messages[0].function_call"),
    ({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}, "messages[0].tool_calls[0]"),
])
def test_parts_without_a_word_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    """The error says where it stands."""
    with pytest.raises(BadRequest) as caught:
        openai_request.parse_request(orjson.dumps({"model": "m", "messages": [message]}))
    assert caught.value.param == param


@pytest.mark.parametrize(("fields", "param"), [
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
])
def test_fields_without_a_word_are_refused(fields: dict[str, Any], param: str) -> None:
    """The same for fields of the whole request."""
    with pytest.raises(BadRequest) as caught:
        openai_request.parse_request(orjson.dumps({"model": "m", "messages": [], **fields}))
    assert caught.value.param == param


def test_cache_markers_are_read() -> None:
    """Both spellings, on parts, on messages and on tools."""
    prompt = openai_request.parse_request(orjson.dumps({"model": "m", "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"role": "user", "content": [{"type": "text", "text": "c", "prompt_cache_breakpoint": {"mode": "explicit"}}]},
    ], "tools": [{"type": "function", "function": {"name": "t"}, "cache_control": {"type": "ephemeral"}}]}))
    assert [each.parts[0].cache for each in prompt.messages] == [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}]    # type: ignore[union-attr]
    assert prompt.tools[0].cache == {"type": "ephemeral"}


def test_forbidden_fields_never_travel() -> None:
    """Fields that steer other gateways are no part of a prompt."""
    prompt = openai_request.parse_request(orjson.dumps({"model": "m", "messages": [], "api_base": "http://x", "extra_headers": {}}))
    assert prompt.extra == {}
