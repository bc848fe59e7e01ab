"""OpenAI responses requests to Prompt and back.

The input is a flat list of items where other dialects have turns: a call stands beside the message, not in it. What one
speaker says in a row is one message here. Reasoning items can only be used by the provider that made them; those that we
made of another provider's signed blocks (`SEALED`) are opened again.
"""
from __future__ import annotations

import base64
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
from gateway.dialects.openai_request import cache_marker, effort, result_texts, says_nothing, wants_object

SEALED = "tollway."
"""How the `encrypted_content` of a reasoning item begins that holds a block of another dialect."""
_HANDLED = frozenset({
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "stream",
    "stream_options", "temperature", "top_p", "user", "text", "reasoning", "include", "truncation", "store", *FORBIDDEN,
})
_KNOWN = frozenset({
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "store",
    "top_logprobs",
})
"""Fields that stand in a chat request by the same name."""
_HINTS = frozenset({"service_tier", "cache_control", "diagnostics", "speed", "seed"})
_HARMLESS: Mapping[str, Sequence[Json]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "logit_bias": ({},), "modalities": (["text"],), "functions": ([],), "function_call": ("auto", "none"),
}
"""Values that say what happens anyway."""
_ROLES: Mapping[str, Literal["system", "user", "assistant"]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}
Turn = tuple[Literal["system", "user", "assistant"], list[Part]]


def parse_request(body: bytes) -> Prompt:
    wire = msgspec.json.decode(body)
    choice, settings = wire.get("tool_choice"), wire.get("text") or {}
    extra = {name: value for name, value in wire.items() if name not in _HANDLED and value is not None}
    _check(wire, extra)
    if (verbosity := settings.get("verbosity")) is not None:
        extra["verbosity"] = verbosity
    if (level := (wire.get("reasoning") or {}).get("effort")) is not None:
        extra["reasoning_effort"] = level
    return Prompt(
        model=wire["model"],
        messages=tuple(_messages(wire)),
        tools=tuple(_tool(index, each) for index, each in enumerate(wire.get("tools") or ())),
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=wire.get("parallel_tool_calls"),
        max_output_tokens=wire.get("max_output_tokens"),
        stream=bool(wire.get("stream")),
        temperature=wire.get("temperature"),
        top_p=wire.get("top_p"),
        user=wire.get("user"),
        response_schema=_schema(settings.get("format")),
        json_object=wants_object(settings.get("format")),
        extra=extra,
    )


def render_request(prompt: Prompt) -> dict[str, Json]:
    if prompt.stop:
        raise refuse("stop", "a stop sequence")
    items = [item for message in prompt.messages for item in _items(message)]
    wire: dict[str, Json] = {"model": prompt.model, "input": items}
    if prompt.tools:
        wire["tools"] = [_render_tool(tool) for tool in prompt.tools]
        if prompt.tool_choice is not None:
            wire["tool_choice"] = _render_choice(prompt.tool_choice)
        if prompt.parallel_tool_calls is not None:
            wire["parallel_tool_calls"] = prompt.parallel_tool_calls
    optional: dict[str, Json] = {
        "max_output_tokens": prompt.max_output_tokens, "stream": prompt.stream or None, "temperature": prompt.temperature,
        "top_p": prompt.top_p, "user": prompt.user,
    }
    wire |= {name: value for name, value in optional.items() if value is not None}
    if prompt.response_schema is not None:
        wire["text"] = {"format": {"type": "json_schema", **prompt.response_schema}}
    elif prompt.json_object:
        wire["text"] = {"format": {"type": "json_object"}}
    return wire | _extra(prompt, wire.get("text", {}))


def _check(wire: Mapping[str, Any], extra: dict[str, Json]) -> None:
    """What needs a provider that remembers, or that works on later, cannot go to another dialect."""
    for name in ("previous_response_id", "background", "conversation", "prompt", "context_management"):
        if extra.pop(name, None):
            raise refuse(name, "this field")
    if wire.get("truncation") not in (None, "disabled"):
        raise refuse("truncation", "this field")
    for what in wire.get("include") or ():
        if what != "reasoning.encrypted_content":
            raise refuse("include", f"{what!r}")


def _messages(wire: Mapping[str, Any]) -> Iterator[Message]:
    """Items joined to turns; the instructions stand before all."""
    if instructions := wire.get("instructions"):
        yield Message(role="system", parts=(Text(text=instructions),))
    given = wire.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or ()
    turn: Turn | None = None
    results = False
    for index, item in enumerate(items):
        role, parts = _item(f"input[{index}]", item)
        is_result = item.get("type") == "function_call_output"
        if turn is not None and turn[0] == role and (role == "assistant" or (is_result and results)):
            turn[1].extend(parts)
        else:
            if turn is not None:
                yield Message(role=turn[0], parts=tuple(turn[1]))
            turn = (role, list(parts))
        results = is_result
    if turn is not None:
        yield Message(role=turn[0], parts=tuple(turn[1]))


def _item(where: str, item: Mapping[str, Any]) -> tuple[Literal["system", "user", "assistant"], Sequence[Part]]:
    match item.get("type") or "message":
        case "message" if item.get("role") in _ROLES:
            return _ROLES[item["role"]], tuple(_parts(where, item.get("content")))
        case "function_call":
            return "assistant", (ToolUse(id=item["call_id"], name=item["name"], arguments=item.get("arguments") or ""),)
        case "function_call_output":
            return "user", (ToolResult(id=item["call_id"], parts=tuple(_parts(where, item.get("output"), "output"))),)
        case "reasoning":
            return "assistant", (Thinking(raw=opened(item)),)
        case kind:
            raise refuse(where, f"an item of type {kind!r}" + (f" and role {item['role']!r}" if "role" in item else ""))


def opened(item: Mapping[str, Any]) -> Mapping[str, Json]:
    """The block of another dialect that a reasoning item holds, or the item itself."""
    sealed = item.get("encrypted_content")
    if not isinstance(sealed, str) or not sealed.startswith(SEALED):
        return item
    try:
        block = msgspec.json.decode(base64.b64decode(sealed.removeprefix(SEALED)))
    except ValueError:
        return item
    return block if isinstance(block, dict) else item


def sealed(block: Mapping[str, Json]) -> str:
    """A block as the `encrypted_content` of a reasoning item, for a client to send back."""
    return SEALED + base64.b64encode(msgspec.json.encode(block)).decode()


def _parts(where: str, content: Json, field: str = "content") -> Iterator[Shown]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for place, part in enumerate(content or ()):
        match part.get("type"):
            case "input_text" | "output_text" | "text":
                yield Text(text=part["text"], cache=cache_marker(part))
            case "refusal":
                yield Text(text=part["refusal"])
            case "input_image" if part.get("image_url"):
                yield Image(url=part["image_url"], detail=part.get("detail"), cache=cache_marker(part))
            case "input_file":
                yield documents.of_openai(f"{where}.{field}[{place}]", part, cache_marker(part))
            case kind:
                raise refuse(f"{where}.{field}[{place}]", f"a part of type {kind!r}")


def _tool(index: int, wire: Mapping[str, Any]) -> Tool:
    if wire.get("type") != "function":
        raise refuse(f"tools[{index}]", f"a tool of type {wire.get('type')!r}")
    return Tool(
        name=wire["name"], description=wire.get("description"), parameters=wire.get("parameters"), strict=wire.get("strict"),
    )


def _choice(wire: Json) -> ToolChoice:
    if wire in ("auto", "none", "required"):
        return ToolChoice(mode=wire)
    if isinstance(wire, dict) and wire.get("type") == "function":
        return ToolChoice(mode="named", name=wire["name"])
    raise refuse("tool_choice", "this choice")


def _schema(wire: Mapping[str, Any] | None) -> Json:
    kind = (wire or {"type": "text"}).get("type")
    if kind == "json_schema" and wire:
        return {name: value for name, value in wire.items() if name != "type"}
    if kind not in ("text", "json_object"):
        raise refuse("text.format", f"the type {kind!r}")
    return None


def _items(message: Message) -> Iterator[dict[str, Json]]:
    """A message as items, in the order in which its parts stand; results of tools before all."""
    said: list[Shown] = []
    for part in sorted(message.parts, key=lambda part: not isinstance(part, ToolResult)):
        match part:
            case Text() | Image() | Document():
                said.append(part)
                continue
            case Thinking(raw=raw) if raw.get("type") != "reasoning":
                continue
        yield from _said(message.role, said)
        said = []
        match part:
            case ToolResult():
                yield {"type": "function_call_output", "call_id": part.id, "output": _output(part)}
            case ToolUse():
                yield {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments or "{}"}
            case Thinking(raw=raw):
                yield dict(raw)
    yield from _said(message.role, said)


def _said(role: str, parts: Sequence[Shown]) -> Iterator[dict[str, Json]]:
    if parts:
        kind = "output_text" if role == "assistant" else "input_text"
        yield {"type": "message", "role": role, "content": _content(kind, parts)}


def _output(result: ToolResult) -> Json:
    texts, others = result_texts(result), [part for part in result.parts if not isinstance(part, Text)]
    return _content("input_text", [*texts, *others] or [Text(text="")])


def _content(kind: str, parts: Sequence[Shown]) -> Json:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_render_part(kind, part) for part in parts]


def _render_part(kind: str, part: Shown) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"type": kind, "text": part.text}
    if isinstance(part, Document):
        return {"type": "input_file", **documents.to_responses(part)}
    return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}


def _render_tool(tool: Tool) -> dict[str, Json]:
    """`strict` is always said: left out it means yes here, and no in other dialects."""
    described = {} if tool.description is None else {"description": tool.description}
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "name": tool.name, **described, "parameters": parameters, "strict": bool(tool.strict)}


def _render_choice(choice: ToolChoice) -> Json:
    return choice.mode if choice.mode != "named" else {"type": "function", "name": choice.name}


def _extra(prompt: Prompt, text: dict[str, Json]) -> dict[str, Json]:
    """Nothing is to be stored unless the client says so: the default here is yes, and its own dialect's is no."""
    wire: dict[str, Json] = {"store": False}
    level: str | None = None
    for name, value in prompt.extra.items():
        if name in _KNOWN and value not in _HARMLESS.get(name, ()):
            wire[name] = value
        elif name == "verbosity":
            text["verbosity"] = value
        elif name == "reasoning_effort":
            level = value
        elif name == "thinking":
            level = level or effort(value)
        elif name == "output_config" and set(value) <= {"effort"}:
            level = value.get("effort")
        elif name not in _HINTS and value not in _HARMLESS.get(name, ()) and not says_nothing(name, value):
            raise refuse(name, "this field")
    if level is not None:
        wire["reasoning"] = {"effort": level}
    return wire | ({"text": text} if text else {})
