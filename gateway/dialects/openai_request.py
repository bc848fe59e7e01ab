"""OpenAI chat requests to Prompt and back.

Cache markers that clients put into this shape (`cache_control`, `prompt_cache_breakpoint`) are read; written they are not,
since this API caches by itself and older models refuse them. Nor are thinking blocks: only the provider that signed
them can use them. Pictures and files inside a tool result move to a user message behind the results, which are text only here.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.core.prompt import (
    Document,
    Image,
    Json,
    Message,
    Part,
    Prompt,
    Shown,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from gateway.dialects import documents
from gateway.dialects.facts import FORBIDDEN, refuse

_HANDLED = frozenset({
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "temperature", "top_p", "stop", "user", "response_format", *FORBIDDEN,
})
KNOWN = frozenset({
    "audio", "frequency_penalty", "logit_bias", "logprobs", "metadata", "modalities", "moderation", "n", "prediction",
    "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
    "safety_identifier", "seed", "store", "top_logprobs", "verbosity", "web_search_options",
})
"""Fields of this API that have no word in Prompt."""
_HINTS = frozenset({"service_tier", "cache_control", "diagnostics", "speed", "client_metadata"})
"""What another dialect's client may wish for and the broker decides, or what changes no answer."""
_NEWER = re.compile(r"(^|/)(o\d|gpt-[5-9]|gpt-\d\d)")
"""Models that refuse `max_tokens` and want `max_completion_tokens`; other backends may know only the older name."""
_BILLING = "x-anthropic-billing-header"


def limit_field(model: str) -> str:
    """Where a request to this model says how many tokens it may generate."""
    return "max_completion_tokens" if _NEWER.search(model) else "max_tokens"


def parse_request(body: bytes) -> Prompt:
    wire = msgspec.json.decode(body)
    choice, stream = wire.get("tool_choice"), bool(wire.get("stream"))
    stop = wire.get("stop") or ()
    newer = wire.get("max_completion_tokens")
    return Prompt(
        model=wire["model"],
        messages=tuple(_message(index, each) for index, each in enumerate(wire["messages"])),
        tools=tuple(_tool(index, each) for index, each in enumerate(wire.get("tools") or ())),
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=wire.get("parallel_tool_calls"),
        max_output_tokens=wire.get("max_tokens") if newer is None else newer,
        stream=stream,
        wants_usage=not stream or bool((wire.get("stream_options") or {}).get("include_usage")),
        temperature=wire.get("temperature"),
        top_p=wire.get("top_p"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        user=wire.get("user"),
        response_schema=_schema(wire.get("response_format")),
        json_object=wants_object(wire.get("response_format")),
        extra={name: value for name, value in wire.items() if name not in _HANDLED and value is not None},
    )


def render_request(prompt: Prompt) -> dict[str, Json]:
    wire: dict[str, Json] = {"model": prompt.model, "messages": [w for m in prompt.messages for w in _messages(m)]}
    if prompt.tools:
        wire["tools"] = [_render_tool(tool) for tool in prompt.tools]
        if prompt.tool_choice is not None:
            wire["tool_choice"] = _render_choice(prompt.tool_choice)
        if prompt.parallel_tool_calls is not None:
            wire["parallel_tool_calls"] = prompt.parallel_tool_calls
    if prompt.max_output_tokens is not None:
        wire[limit_field(prompt.model)] = prompt.max_output_tokens
    if prompt.stream:
        wire |= {"stream": True, "stream_options": {"include_usage": True}}
    stop = list(prompt.stop) or None
    optional = {"temperature": prompt.temperature, "top_p": prompt.top_p, "stop": stop, "user": prompt.user}
    wire |= {name: value for name, value in optional.items() if value is not None}
    if prompt.response_schema is not None:
        wire["response_format"] = {"type": "json_schema", "json_schema": prompt.response_schema}
    elif prompt.json_object:
        wire["response_format"] = {"type": "json_object"}
    return wire | _extra(prompt)


def _message(index: int, wire: Mapping[str, Any]) -> Message:
    where, role = f"messages[{index}]", wire.get("role")
    marker = cache_marker(wire)
    if role == "tool":
        parts = tuple(_parts(where, wire.get("content"), None))
        return Message(role="user", parts=(ToolResult(id=wire.get("tool_call_id") or "", parts=parts, cache=marker),))
    if role in ("system", "developer", "user"):
        kind: Literal["system", "user"] = "user" if role == "user" else "system"
        return Message(role=kind, parts=tuple(_parts(where, wire.get("content"), marker)), name=wire.get("name"))
    if role == "assistant":
        return Message(role="assistant", parts=tuple(_assistant(where, wire, marker)), name=wire.get("name"))
    raise refuse(f"{where}.role", f"the role {role!r}")


def _assistant(where: str, wire: Mapping[str, Any], marker: Mapping[str, Json] | None) -> Iterator[Part]:
    for name in ("audio", "function_call"):
        if wire.get(name):
            raise refuse(f"{where}.{name}", "this field")
    yield from (Thinking(raw=block) for block in wire.get("thinking_blocks") or ())
    yield from _parts(where, wire.get("content"), marker)
    if refusal := wire.get("refusal"):
        yield Text(text=refusal)
    for place, call in enumerate(wire.get("tool_calls") or ()):
        if call.get("type", "function") != "function":
            raise refuse(f"{where}.tool_calls[{place}]", f"a tool call of type {call['type']!r}")
        function = call["function"]
        yield ToolUse(id=call["id"], name=function["name"], arguments=function.get("arguments") or "")


def _parts(where: str, content: Json, marker: Mapping[str, Json] | None) -> Iterator[Shown]:
    if isinstance(content, str):
        if content:
            yield Text(text=content, cache=marker)
        return
    last = len(content or ()) - 1
    for place, part in enumerate(content or ()):
        cache = cache_marker(part) or (marker if place == last else None)
        match part.get("type"):
            case "text":
                yield Text(text=part["text"], cache=cache)
            case "refusal":
                yield Text(text=part["refusal"], cache=cache)
            case "image_url":
                image = part["image_url"]
                yield Image(url=image["url"], detail=image.get("detail"), cache=cache)
            case "file":
                yield documents.of_openai(f"{where}.content[{place}]", part["file"], cache)
            case kind:
                raise refuse(f"{where}.content[{place}]", f"a part of type {kind!r}")


def cache_marker(wire: Mapping[str, Any]) -> Mapping[str, Json] | None:
    if (found := wire.get("cache_control")) is not None:
        return found    # type: ignore[no-any-return]
    if (found := wire.get("prompt_cache_breakpoint")) is not None:
        return {"type": "ephemeral", "ttl": "1h"} if found.get("ttl") == "12h" else {"type": "ephemeral"}
    return None


def _tool(index: int, wire: Mapping[str, Any]) -> Tool:
    if wire.get("type") != "function":
        raise refuse(f"tools[{index}]", f"a tool of type {wire.get('type')!r}")
    function = wire["function"]
    return Tool(
        name=function["name"], description=function.get("description"), parameters=function.get("parameters"),
        strict=function.get("strict"), cache=cache_marker(wire) or cache_marker(function),
    )


def _choice(wire: Json) -> ToolChoice:
    if wire in ("auto", "none", "required"):
        return ToolChoice(mode=wire)
    if isinstance(wire, dict) and wire.get("type") == "function":
        return ToolChoice(mode="named", name=wire["function"]["name"])
    raise refuse("tool_choice", "this choice")


def _schema(wire: Mapping[str, Any] | None) -> Json:
    kind = (wire or {"type": "text"}).get("type")
    if kind == "json_schema" and wire:
        return wire["json_schema"]
    if kind not in ("text", "json_object"):
        raise refuse("response_format", f"the type {kind!r}")
    return None


def wants_object(form: Mapping[str, Any] | None) -> bool:
    """Whether an output format asks for JSON without a schema."""
    return form is not None and form.get("type") == "json_object"


def _messages(message: Message) -> Iterator[dict[str, Json]]:
    named = {} if message.name is None else {"name": message.name}
    if message.role == "assistant":
        yield _render_assistant(message) | named
        return
    moved: list[Shown] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            moved += [each for each in part.parts if not isinstance(each, Text)]
            yield {"role": "tool", "tool_call_id": part.id, "content": _content(result_texts(part))}
    rest = [*moved, *(part for part in message.parts if isinstance(part, Shown))]
    if message.role == "system":
        rest = [kept for part in rest if (kept := _without_billing(part)) is not None]
    if rest or (message.role == "user" and not message.parts):
        yield {"role": message.role, "content": _content(rest)} | named


def _render_assistant(message: Message) -> dict[str, Json]:
    words = [part for part in message.parts if isinstance(part, Shown)]
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments or "{}"}}
        for part in message.parts if isinstance(part, ToolUse)
    ]
    wire: dict[str, Json] = {"role": "assistant", "content": _content(words) if words or not calls else None}
    return wire | {"tool_calls": calls} if calls else wire


def _content(parts: Sequence[Shown]) -> Json:
    """A plain string where one will do: some backends know nothing else."""
    if not parts or (len(parts) == 1 and isinstance(parts[0], Text)):
        return parts[0].text if parts and isinstance(parts[0], Text) else ""
    return [_render_part(part) for part in parts]


def _render_part(part: Shown) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Document):
        return {"type": "file", "file": documents.to_chat(part)}
    image = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
    return {"type": "image_url", "image_url": image}


def result_texts(result: ToolResult) -> list[Text]:
    """OpenAI's APIs have no mark for a failed tool, so the text has to say it."""
    texts = [part for part in result.parts if isinstance(part, Text)]
    if result.is_error and not any("error" in part.text.lower() for part in texts):
        return [Text(text="Error: " + texts[0].text), *texts[1:]] if texts else [Text(text="Error")]
    return texts


def _without_billing(part: Shown) -> Shown | None:
    """A client's own billing line changes with every call, so it would spoil the prefix, and only its provider reads it."""
    if isinstance(part, Text) and _BILLING in part.text:
        lines = [line for line in part.text.split("\n") if not line.startswith(_BILLING)]
        return Text(text="\n".join(lines)) if any(line.strip() for line in lines) else None
    return part


def _render_tool(tool: Tool) -> dict[str, Json]:
    optional = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {"name": tool.name} | {k: v for k, v in optional.items() if v is not None}}


def _render_choice(choice: ToolChoice) -> Json:
    return choice.mode if choice.mode != "named" else {"type": "function", "function": {"name": choice.name}}


def _extra(prompt: Prompt) -> dict[str, Json]:
    wire: dict[str, Json] = {}
    for name, value in prompt.extra.items():
        if name in KNOWN:
            wire[name] = value
        elif name == "thinking":
            wire.setdefault("reasoning_effort", effort(value))
        elif name == "output_config" and set(value) <= {"effort"}:
            wire["reasoning_effort"] = value.get("effort")
        elif name not in _HINTS and not says_nothing(name, value):
            raise refuse(name, "this field")
    return {name: value for name, value in wire.items() if value is not None}


def says_nothing(name: str, value: Json) -> bool:
    """Whether a field of Anthropic's asks for what happens anyway: no servers, and the handling of thinking, which stays here.
    Coding clients send the latter with every call."""
    if name == "mcp_servers":
        return isinstance(value, list) and not value
    if name != "context_management" or not isinstance(value, Mapping) or not set(value) <= {"edits"}:
        return False
    edits = value.get("edits") or ()
    return all(isinstance(edit, Mapping) and str(edit.get("type")).startswith("clear_thinking_") for edit in edits)


def effort(thinking: Mapping[str, Any]) -> str | None:
    """A thinking budget as a level of effort; None leaves it to the model."""
    if thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens") or 0
    return "low" if budget < 4096 else "medium" if budget < 16384 else "high"
