from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given

from gateway import dialects
from gateway.core.errors import BadRequest
from gateway.core.prompt import Image, Message, Prompt, Text, Thinking, Tool, ToolChoice, ToolResult, ToolUse
from gateway.dialects import responses_request
from tests.dialects.prompts import responses_prompts

SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "U2ln"}
ITEM = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


def parse(**fields: Any) -> Prompt:
    return responses_request.parse_request(orjson.dumps({"model": "m", "input": [], **fields}))


def render(*messages: Message, **fields: Any) -> dict[str, Any]:
    wire = responses_request.render_request(Prompt(**{"model": "m", "messages": messages, **fields}))
    return orjson.loads(orjson.dumps(wire))    # type: ignore[no-any-return]


@given(responses_prompts())
def test_round_trip(prompt: Prompt) -> None:
    """What is rendered is read back as the same prompt."""
    again = responses_request.parse_request(msgspec.json.encode(responses_request.render_request(prompt)))
    assert again == prompt


def test_items_are_joined_to_turns() -> None:
    """Calls, reasoning and words in a row are one turn, results in a row another; a user's words stay apart from results."""
    prompt = parse(instructions="Be brief.", input=[
        {"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "input_text", "text": "u"}, {"type": "input_image", "image_url": "https://x/a.png", "detail": "low"}]},
        ITEM, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"b":1.0}'}, {"type": "function_call", "call_id": "2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]}, {"role": "user", "content": "u2"},
    ])
    assert prompt.messages == (
        Message(role="system", parts=(Text(text="Be brief."),)), Message(role="system", parts=(Text(text="d"),)),
        Message(role="user", parts=(Text(text="u"), Image(url="https://x/a.png", detail="low"))),
        Message(role="assistant", parts=(Thinking(raw=ITEM), Text(text="a"), Text(text="no"), ToolUse(id="1", name="f", arguments='{"b":1.0}'), ToolUse(id="2", name="g", arguments=""))),
        Message(role="user", parts=(ToolResult(id="1", parts=(Text(text="one"),)), ToolResult(id="2", parts=(Text(text="two"),)))),
        Message(role="user", parts=(Text(text="u2"),)),
    )
    assert parse(input="hi").messages == (Message(role="user", parts=(Text(text="hi"),)),)


def test_another_vendors_block_travels_in_a_reasoning_item() -> None:
    """A signed block that went out sealed comes back as it was; items of OpenAI's own stay what they are."""
    item = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": responses_request.sealed(SIGNED)}
    assert responses_request.opened(item) == SIGNED
    for broken in ("tollway.%", "tollway.Wzfd", "gAAA", None):
        assert responses_request.opened({**ITEM, "encrypted_content": broken})["type"] == "reasoning"
    body = orjson.dumps({"model": "m", "max_output_tokens": 9, "input": [{"role": "user", "content": "u"}, item, {"role": "assistant", "content": "a"}]})
    out = orjson.loads(dialects.request("openai_responses", "anthropic_messages", body, dialects.read("openai_responses", body), model="m", set_fields={}, ask_usage=False))
    assert out["messages"][1]["content"] == [SIGNED, {"type": "text", "text": "a"}]


@pytest.mark.parametrize(("fields", "param"), [
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"), ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"), ({"truncation": "auto"}, "truncation"), ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"), ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "critic", "content": "x"}]}, "input[1]"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_file"}]}]}, "input[0].output[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
])
def test_what_cannot_be_said_elsewhere_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Nothing is dropped in silence, least of all what the provider is to remember."""
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["max_tool_calls", "context_management", "something_new"])
@pytest.mark.parametrize("upstream", ["openai_chat", "anthropic_messages"])
def test_unknown_fields_are_refused_on_the_way_to_another_dialect(name: str, upstream: str) -> None:
    """Also those that will only be invented."""
    body = orjson.dumps({"model": "m", "input": "x", name: [1]})
    with pytest.raises(BadRequest) as caught:
        dialects.request("openai_responses", upstream, body, dialects.read("openai_responses", body), model="m", set_fields={}, ask_usage=False)
    assert caught.value.param == name


def test_what_says_nothing_new_is_no_obstacle() -> None:
    """Null fields, defaults and wishes that change no answer."""
    prompt = parse(store=True, background=False, previous_response_id=None, truncation="disabled", include=["reasoning.encrypted_content"],
                   reasoning={"effort": "high", "summary": "auto"}, text={"verbosity": "low", "format": {"type": "text"}}, stream_options={"include_obfuscation": False})
    assert prompt.extra == {"reasoning_effort": "high", "verbosity": "low"}


def test_schemas_keep_their_order() -> None:
    """Of tools and of structured output, through to a chat backend and back again."""
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
    body = orjson.dumps({"model": "m", "input": "x", "tools": [{"type": "function", "name": "t", "parameters": schema, "strict": True}],
                         "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}})
    chat = dialects.request("openai_responses", "openai_chat", body, dialects.read("openai_responses", body), model="m", set_fields={}, ask_usage=False)
    back = dialects.request("openai_chat", "openai_responses", chat, dialects.read("openai_chat", chat), model="m", set_fields={}, ask_usage=False)
    assert chat.count(orjson.dumps(schema)) == back.count(orjson.dumps(schema)) == 2
    assert orjson.loads(back)["text"] == orjson.loads(body)["text"]


@pytest.mark.parametrize(("fields", "wire"), [
    ({}, {}), ({"max_output_tokens": 5, "temperature": 0.5, "user": "u", "stream": True}, {"max_output_tokens": 5, "temperature": 0.5, "user": "u", "stream": True}),
    ({"extra": {"reasoning_effort": "low", "verbosity": "high", "seed": 5, "n": 2}}, None),
    ({"extra": {"reasoning_effort": "low", "verbosity": "high", "n": 1, "store": True}}, {"reasoning": {"effort": "low"}, "text": {"verbosity": "high"}, "store": True}),
    ({"extra": {"thinking": {"type": "enabled", "budget_tokens": 99_000}, "service_tier": "auto"}}, {"reasoning": {"effort": "high"}}),
    ({"extra": {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "mcp_servers": []}}, {}),
    ({"extra": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}}, None),
    ({"extra": {"output_config": {"effort": "max"}}}, {"reasoning": {"effort": "max"}}),
    ({"tools": (Tool(name="t", description=None, parameters=None),), "tool_choice": ToolChoice(mode="named", name="t"), "parallel_tool_calls": False},
     {"tools": [{"type": "function", "name": "t", "parameters": {"type": "object", "properties": {}}, "strict": False}],
      "tool_choice": {"type": "function", "name": "t"}, "parallel_tool_calls": False}),
])
def test_fields_of_a_rendered_request(fields: dict[str, Any], wire: dict[str, Any] | None) -> None:
    """Nothing is stored and no schema is strict unless the client says so: this API's defaults are the other way round."""
    if wire is None:
        with pytest.raises(BadRequest):
            render(**fields)
        return
    assert render(**fields) == {"model": "m", "input": [], "store": False, **wire}


@pytest.mark.parametrize(("message", "fields", "param"), [
    (Message(role="user", parts=()), {"stop": ("x",)}, "stop"),
    (Message(role="user", parts=()), {"extra": {"logit_bias": {"1": 2}}}, "logit_bias"),
])
def test_what_this_api_has_no_word_for_is_refused(message: Message, fields: dict[str, Any], param: str) -> None:
    """On the way here too."""
    with pytest.raises(BadRequest) as caught:
        render(message, **fields)
    assert caught.value.param == param


def test_parts_keep_their_order() -> None:
    """Results of tools first, words and calls as they stood; signed blocks of others stay behind, a failed tool says so."""
    wire = render(
        Message(role="assistant", parts=(Thinking(raw=SIGNED), Thinking(raw=ITEM), Text(text="a"), ToolUse(id="1", name="f", arguments=""), Text(text="b"))),
        Message(role="user", parts=(Text(text="u"), ToolResult(id="1", parts=(Text(text="gone"), Image(url="https://x/a.png")), is_error=True))),
    )
    assert wire["input"] == [
        ITEM, {"type": "message", "role": "assistant", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "b"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "Error: gone"}, {"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"}]},
        {"type": "message", "role": "user", "content": "u"},
    ]
    assert replace(parse(input=wire["input"]), model="m").messages[0].parts[0] == Thinking(raw=ITEM)
