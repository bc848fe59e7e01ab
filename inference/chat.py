"""An OpenAI chat request, read and checked: its conversation as prompt ids, its tools, the form its answer must have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference.grammar import BadGrammar, Grammar, any_json, json_schema
from inference.parameters import Json, Requested, bad, check_length, flag, integer, mapping, read_ask, telling
from inference.tokenizer import Tokenizer, Turn
from inference.tools import Forced, Tool, ToolCall, force, render_call, render_result, render_tools


@dataclass(frozen=True, slots=True)
class ChatRequest(Requested):
    """A chat's: whether calls are looked for in its answer, and the one it is forced to be."""

    finds_calls: bool
    forced: Forced | None


def read_chat(body: Json, tokenizer: Tokenizer, context: int) -> ChatRequest:
    """Check a body and encode its conversation."""
    finds, forced = _tool_choice(body, _tools(body))
    listed = integer(body, "top_logprobs", 0, 0, 20)
    if listed and not flag(body, "logprobs"):
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    prompt = check_length(encode_prompt(body, tokenizer, forced), context, "messages")
    ask = read_ask(body, prompt, context, tokenizer.size, listed if flag(body, "logprobs") else None)
    ask = replace(ask, cut=forced.cut if forced else None, grammar=_grammar(body, tokenizer, forced))
    return ChatRequest(ask, *telling(body), finds, forced)


def _grammar(body: Json, tokenizer: Tokenizer, forced: Forced | None) -> Grammar | None:
    """The form that `response_format` asks for."""
    form = mapping(body, "response_format")
    kind = form.get("type") or "text"
    if kind == "text":
        return None
    if forced is not None:
        raise bad("response_format does not go with a forced tool call", "response_format")
    if kind == "json_object":
        return any_json(tokenizer)
    schema = mapping(form, "json_schema").get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise bad("response_format must be text, json_object, or json_schema with json_schema.schema", "response_format")
    try:
        return json_schema(schema, tokenizer)
    except BadGrammar as error:
        raise bad(f"response_format: {error}", "response_format") from error


def encode_prompt(body: Json, tokenizer: Tokenizer, forced: Forced | None = None) -> list[int]:
    """The conversation as ids. Ids of a longer conversation begin with those of a shorter one up to its answer."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages must be a list with at least one message", "messages")
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    tools = _tools(body)
    if tools and body.get("tool_choice") != "none":
        first = Turn("system", (tokenizer.format.system or "",))
        if turns[0].role == "system":
            first = turns.pop(0)
        turns.insert(0, Turn("system", (*first.parts, "\n\n" + render_tools(tools))))
    return tokenizer.encode_chat(turns, (forced.opening,) if forced else ())


def _turn(message: object, where: str) -> Turn:
    if not isinstance(message, dict):
        raise bad(f"{where} must be an object", where)
    role = message.get("role")
    text = _text(message.get("content"), f"{where}.content")
    match role:
        case "system" | "developer":
            return Turn("system", (text,))
        case "user":
            return Turn("user", (text,))
        case "tool" | "function":
            return Turn("user", (render_result(text),))
        case "assistant":
            calls = [part for call in _calls(message, where) for part in render_call(call)]
            return Turn("assistant", tuple(part for part in (text, *calls) if part))
    raise bad(f"{where}.role is {role!r}, not system, developer, user, assistant or tool", f"{where}.role")


def _text(content: object, where: str) -> str:
    """Content as text: a string, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} must be a string, null or a list of parts", where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "refusal") or not isinstance(text, str):
            raise bad(f"{where}[{index}] is not a text part; this model reads only text", f"{where}[{index}]")
        texts.append(text)
    return "".join(texts)


def _calls(message: Json, where: str) -> list[ToolCall]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise bad(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    found = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments", "{}") if isinstance(function, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            place = f"{where}.tool_calls[{index}]"
            raise bad(f"{place} needs function.name and function.arguments as strings", place)
        found.append(ToolCall(name, arguments))
    return found


def _tools(body: Json) -> list[Tool]:
    listed = body.get("tools")
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise bad("tools must be a list", "tools")
    tools = []
    for index, entry in enumerate(listed):
        function = entry.get("function") if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise bad(f"tools[{index}] needs function.name", f"tools[{index}]")
        description, parameters = function.get("description") or "", function.get("parameters") or {}
        if not isinstance(description, str) or not isinstance(parameters, dict):
            raise bad(f"tools[{index}].function has a malformed description or parameters", f"tools[{index}]")
        tools.append(Tool(name, description, parameters))
    return tools


def _tool_choice(body: Json, tools: Sequence[Tool]) -> tuple[bool, Forced | None]:
    """Whether calls are looked for in the answer, and what it is forced to begin with."""
    choice = body.get("tool_choice")
    names = [tool.name for tool in tools]
    if choice is None or choice == "auto":
        return bool(tools), None
    if choice == "none":
        return False, None
    if choice == "required" and names:
        return True, force(names)
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if name in names:
            return True, force([name])
    raise bad("tool_choice must be none, auto, required or the name of a given tool", "tool_choice")
