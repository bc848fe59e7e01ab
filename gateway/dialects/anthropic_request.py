"""Anthropic Messages requests to Prompt and back.

What this API insists on is made so when rendering: neighbours of one role are one turn, results of tool calls come first
in it, no text is empty, `max_tokens` is always there, and system messages stand before the conversation (all of them:
only newer models know any further down). Signed thinking blocks pass unchanged.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

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

DEFAULT_MAX_TOKENS = 16_384
"""The API needs a limit; for clients of dialects that do not."""
_HANDLED = frozenset({
    "model", "messages", "system", "tools", "tool_choice", "max_tokens", "stream", "temperature", "top_p", "stop_sequences",
    *FORBIDDEN,
})
_KNOWN = frozenset({
    "cache_control", "container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "output_config",
    "speed", "thinking", "top_k", "user_profile_id",
})
_HINTS = frozenset({
    "metadata", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "seed", "client_metadata",
})
"""What the broker decides, or what changes no answer; `seed`, which promises none, is told of (`backends/fields.py`)."""
_HARMLESS: Mapping[str, tuple[Json, ...]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "logit_bias": ({},), "store": (False,), "modalities": (["text"],), "verbosity": ("medium",), "functions": ([],),
    "function_call": ("auto", "none"),
}
"""Values that say what happens anyway."""
_TOOL_HINTS = frozenset({"name", "description", "input_schema", "strict", "cache_control", "type", "eager_input_streaming"})


def parse_request(body: bytes) -> Prompt:
    wire = msgspec.json.decode(body)
    choice = wire.get("tool_choice") or {}
    head = [Message(role="system", parts=tuple(_parts("system", wire["system"])))] if wire.get("system") else []
    extra = {name: value for name, value in wire.items() if name not in _HANDLED and value is not None}
    user, schema = _taken(extra)
    return Prompt(
        model=wire["model"],
        messages=(*head, *(_message(index, each) for index, each in enumerate(wire["messages"]))),
        tools=tuple(_tool(index, each) for index, each in enumerate(wire.get("tools") or ())),
        tool_choice=_choice(choice) if choice else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        max_output_tokens=wire.get("max_tokens"),
        stream=bool(wire.get("stream")),
        temperature=wire.get("temperature"),
        top_p=wire.get("top_p"),
        stop=tuple(wire.get("stop_sequences") or ()),
        user=user,
        response_schema=schema,
        extra=extra,
    )


def render_request(prompt: Prompt) -> dict[str, Json]:
    if prompt.temperature is not None and prompt.temperature > 1:
        raise refuse("temperature", "a temperature above 1")
    limit = DEFAULT_MAX_TOKENS if prompt.max_output_tokens is None else prompt.max_output_tokens
    wire: dict[str, Json] = {"model": prompt.model, "max_tokens": limit}
    system = [block for m in prompt.messages if m.role == "system" for part in m.parts for block in _blocks(part, m.role)]
    if system:
        plain = len(system) == 1 and set(system[0]) == {"type", "text"}
        wire["system"] = system[0]["text"] if plain else system
    if prompt.tools:
        wire["tools"] = [_render_tool(tool) for tool in prompt.tools]
        wire |= _render_choice(prompt)
    wire["messages"] = _turns(prompt)
    optional: dict[str, Json] = {
        "stream": prompt.stream or None, "temperature": prompt.temperature, "top_p": prompt.top_p,
        "stop_sequences": list(prompt.stop) or None,
    }
    wire |= {name: value for name, value in optional.items() if value is not None}
    return wire | _extra(prompt)


def _taken(extra: dict[str, Json]) -> tuple[str | None, Json]:
    """User and output schema, which have words of their own; what else stood beside them stays."""
    user = schema = None
    if isinstance(metadata := extra.get("metadata"), dict) and set(metadata) <= {"user_id"}:
        user = extra.pop("metadata").get("user_id")
    if isinstance(config := extra.get("output_config"), dict) and config.get("format"):
        form = config["format"]
        if form.get("type") != "json_schema":
            raise refuse("output_config.format", f"the type {form.get('type')!r}")
        schema = {"name": "answer", "schema": form["schema"], "strict": True}
        extra["output_config"] = {name: value for name, value in config.items() if name != "format" and value is not None}
        if not extra["output_config"]:
            del extra["output_config"]
    return user, schema


def _message(index: int, wire: Mapping[str, Any]) -> Message:
    role = wire.get("role")
    if role not in ("user", "assistant", "system"):
        raise refuse(f"messages[{index}].role", f"the role {role!r}")
    return Message(role=role, parts=tuple(_parts(f"messages[{index}].content", wire.get("content"))))


def _parts(where: str, content: Json) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(text=content)
        return
    for index, block in enumerate(content or ()):
        cache, place = block.get("cache_control"), f"{where}[{index}]"
        match block.get("type"):
            case "text":
                yield Text(text=block["text"], cache=cache)
            case "image":
                yield Image(url=documents.url_of(place, block["source"]), cache=cache)
            case "document":
                yield from _document(place, block)
            case "thinking" | "redacted_thinking":
                yield Thinking(raw=block)
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                yield ToolUse(id=block["id"], name=block["name"], arguments=arguments, cache=cache)
            case "tool_result":
                yield ToolResult(
                    id=block["tool_use_id"], parts=tuple(_result(place, block.get("content"))),
                    is_error=bool(block.get("is_error")), cache=cache,
                )
            case kind:
                raise refuse(place, f"a block of type {kind!r}")


def _document(where: str, block: Mapping[str, Any]) -> Iterator[Part]:
    """What is said of it and what is text in it are texts."""
    if (block.get("citations") or {}).get("enabled"):
        raise refuse(f"{where}.citations", "this field")
    cache, source, title = block.get("cache_control"), block["source"], block.get("title")
    if context := block.get("context"):
        yield Text(text=context)
    if source.get("type") not in ("text", "content"):
        yield Document(url=documents.url_of(where, source), name=title, cache=cache)
        return
    shown = tuple(_parts(f"{where}.source.content", source["data"] if source["type"] == "text" else source["content"]))
    if title:
        yield Text(text=title)
    yield from (*shown[:-1], *(replace(last, cache=cache or last.cache) for last in shown[-1:] if isinstance(last, Shown)))


def _result(where: str, content: Json) -> Iterator[Shown]:
    for part in _parts(f"{where}.content", content):
        if not isinstance(part, Shown):
            raise refuse(f"{where}.content", "what stands in this tool result")
        yield part


def _tool(index: int, wire: Mapping[str, Any]) -> Tool:
    if (wire.get("type") or "custom") != "custom":
        raise refuse(f"tools[{index}]", f"a tool of type {wire['type']!r}")
    for name, value in wire.items():
        if name not in _TOOL_HINTS and value not in (None, False, [], ["direct"]):
            raise refuse(f"tools[{index}].{name}", "this field")
    return Tool(
        name=wire["name"], description=wire.get("description"), parameters=wire["input_schema"], strict=wire.get("strict"),
        cache=wire.get("cache_control"),
    )


def _choice(wire: Mapping[str, Any]) -> ToolChoice:
    match wire.get("type"):
        case "auto" | "none" as mode:
            return ToolChoice(mode=mode)
        case "any":
            return ToolChoice(mode="required")
        case "tool":
            return ToolChoice(mode="named", name=wire["name"])
    raise refuse("tool_choice", "this choice")


def _turns(prompt: Prompt) -> list[dict[str, Json]]:
    turns: list[dict[str, Json]] = []
    for message in prompt.messages:
        if message.role == "system":
            continue
        blocks = [block for part in message.parts for block in _blocks(part, message.role)]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": message.role, "content": blocks})
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")    # stable: results first, else as it was
        if len(turn["content"]) == 1 and set(turn["content"][0]) == {"type", "text"}:
            turn["content"] = turn["content"][0]["text"]
    return turns


def _blocks(part: Part, role: str) -> Iterator[dict[str, Json]]:
    match part:
        case Text(text=text) if text.strip():
            yield _marked({"type": "text", "text": text}, part.cache)
        case Image(url=url) if role == "user":
            yield _marked({"type": "image", "source": documents.source_of(url)}, part.cache)
        case Document() if role == "user":
            yield _marked(documents.to_anthropic(part), part.cache)
        case Image() | Document():
            raise refuse("messages", f"an image or a file in a message of the role {role}")
        case Thinking(raw=raw) if raw.get("type") != "reasoning":    # those are OpenAI's, of no use to anyone else
            yield dict(raw)
        case ToolUse():
            yield _marked({"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part)}, part.cache)
        case ToolResult():
            yield _render_result(part)


def _marked(block: dict[str, Json], cache: Mapping[str, Json] | None) -> dict[str, Json]:
    return block if cache is None else block | {"cache_control": cache}


def _render_result(part: ToolResult) -> dict[str, Json]:
    wire: dict[str, Json] = {"type": "tool_result", "tool_use_id": part.id}
    content = [block for each in part.parts for block in _blocks(each, "user")]
    if content:
        plain = len(content) == 1 and set(content[0]) == {"type", "text"}
        wire["content"] = content[0]["text"] if plain else content
    if part.is_error:
        wire["is_error"] = True
    return _marked(wire, part.cache)


def _input(part: ToolUse) -> msgspec.Raw:
    """The arguments' own bytes, so that keys and numbers stay as the model wrote them."""
    text = part.arguments.strip() or "{}"
    try:
        whole = isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        whole = False
    if not whole:
        raise refuse("messages", f"a call of the tool {part.name!r} whose arguments are not a JSON object")
    return msgspec.Raw(text.encode())


def _render_tool(tool: Tool) -> dict[str, Json]:
    schema = {"type": "object"} | (tool.parameters or {"properties": {}})
    optional = {"description": tool.description, "input_schema": schema, "strict": tool.strict}
    return _marked({"name": tool.name} | {k: v for k, v in optional.items() if v is not None}, tool.cache)


def _render_choice(prompt: Prompt) -> dict[str, Json]:
    """`none` and the flag for single calls exclude each other here: without calls there is nothing to limit."""
    choice, single = prompt.tool_choice, prompt.parallel_tool_calls is False
    if choice is None and not single:
        return {}
    mode = "auto" if choice is None else choice.mode
    wire: dict[str, Json] = {"type": {"required": "any", "named": "tool"}.get(mode, mode)}
    if choice is not None and choice.mode == "named":
        wire["name"] = choice.name
    if single and mode != "none":
        wire["disable_parallel_tool_use"] = True
    return {"tool_choice": wire}


def _extra(prompt: Prompt) -> dict[str, Json]:
    if prompt.json_object:
        raise refuse("response_format", "JSON without a schema")
    wire: dict[str, Json] = {}
    output: dict[str, Json] = {}
    if (user := prompt.user or prompt.extra.get("safety_identifier")) is not None:
        wire["metadata"] = {"user_id": user}
    for name, value in prompt.extra.items():
        if name in _KNOWN:
            wire[name] = value
        elif name == "reasoning_effort" and value in ("none", "minimal"):
            wire["thinking"] = {"type": "disabled"}
        elif name == "reasoning_effort":
            output["effort"] = value
        elif name not in _HINTS and value not in _HARMLESS.get(name, ()):
            raise refuse(name, "this field")
    if prompt.response_schema is not None:
        output["format"] = {"type": "json_schema", "schema": prompt.response_schema["schema"]}
    if output:
        wire["output_config"] = wire.get("output_config", {}) | output
    return wire
