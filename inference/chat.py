"""An OpenAI chat request, read and checked: JSON body in, prompt ids and an `Ask` for the engine out.

Fields that we do not know are ignored; a known field with a value that we cannot honour is an error that names it.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.engine import Ask
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD, Lane
from inference.tokenizer import Tokenizer, Turn
from inference.tools import Forced, Tool, ToolCall, force, render_call, render_result, render_tools

Json = Mapping[str, Any]

DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 0.0, 1.0
"""Greedy where the request says nothing: a model of this size drifts into loops when it is sampled."""
DEFAULT_MAX_TOKENS = 512
"""Where the request names no limit; a loop would else go on to the end of the context."""
_LANES = {"priority": FAST, "fast": FAST} | dict.fromkeys(("default", "auto", "standard", "flex"), STANDARD)
_MOST_STOPS = 16
_MOST_SALT = 512


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.retry_after: int | None = None

    def body(self) -> dict[str, Any]:
        """The JSON to send."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What to generate and how the client wants it told."""

    ask: Ask
    stream: bool
    include_usage: bool
    finds_calls: bool
    forced: Forced | None


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The client's mistake."""
    return ApiError(400, message, param=param, code=code)


def read_chat(body: Json, tokenizer: Tokenizer, context: int) -> ChatRequest:
    """Check a body and encode its conversation."""
    if _integer(body, "n", 1, 1, 128) != 1:
        raise bad("only n = 1 is supported", "n")
    tools = _tools(body)
    finds, forced = _tool_choice(body, tools)
    prompt = encode_prompt(body, tokenizer, forced)
    if len(prompt) + 1 > context:
        raise bad(
            f"This model's maximum context length is {context} tokens, and your prompt has {len(prompt)}; "
            "at least one more is needed for the answer.",
            "messages",
            "context_length_exceeded",
        )
    most = _integer(body, "max_tokens", DEFAULT_MAX_TOKENS, 1, 1 << 31)
    most = _integer(body, "max_completion_tokens", most, 1, 1 << 31)
    options = _object(body, "stream_options")
    ask = Ask(
        prompt=prompt,
        most=min(most, context - len(prompt)),
        lane=_lane(body),
        sampling=_sampling(body, tokenizer.size),
        stops=_stops(body),
        cut=forced.cut if forced else None,
        salt=_salt(body),
        priority=_integer(body, "priority", 0, -1000, 1000),
        ignore_eos=_flag(body, "ignore_eos"),
    )
    return ChatRequest(ask, _flag(body, "stream"), _flag(options, "include_usage"), finds, forced)


def encode_prompt(body: Json, tokenizer: Tokenizer, forced: Forced | None = None) -> list[int]:
    """The conversation as ids. Ids of a longer conversation begin with those of a shorter one up to its answer."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages must be a list with at least one message", "messages")
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    tools = _tools(body)
    if tools and body.get("tool_choice") != "none":
        first = Turn("system", (tokenizer.format.system,))
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


def _lane(body: Json) -> Lane:
    tier = body.get("service_tier")
    if tier is None:
        return STANDARD
    if not isinstance(tier, str) or tier not in _LANES:
        raise bad(f"service_tier must be one of {', '.join(_LANES)}", "service_tier")
    return _LANES[tier]


def _sampling(body: Json, vocabulary: int) -> Sampling:
    seed = body.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    elif isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        raise bad("seed must be an integer of 64 bits", "seed")
    listed = _integer(body, "top_logprobs", 0, 0, 20)
    if listed and not _flag(body, "logprobs"):
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    if (_object(body, "response_format").get("type") or "text") != "text":
        raise bad("response_format: only text is supported", "response_format")
    return Sampling(
        temperature=_number(body, "temperature", DEFAULT_TEMPERATURE, 0.0, 2.0),
        top_k=max(0, _integer(body, "top_k", 0, -1, vocabulary)),
        top_p=_number(body, "top_p", DEFAULT_TOP_P, 0.0, 1.0) or 1e-9,
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        presence=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
        frequency=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition=_number(body, "repetition_penalty", 1.0, 0.01, 10.0),
        bias=_bias(body, vocabulary),
        seed=seed,
        logprobs=listed if _flag(body, "logprobs") else None,
    )


def _bias(body: Json, vocabulary: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in _object(body, "logit_bias").items():
        if not key.isascii() or not key.isdigit() or int(key) >= vocabulary:
            raise bad(f"logit_bias: {key!r} is no token id", "logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise bad("logit_bias: values go from -100 to 100", "logit_bias")
        bias[int(key)] = float(value)
    return bias


def _stops(body: Json) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise bad(f"stop must be a string or up to {_MOST_STOPS} of them, none empty", "stop")
    return tuple(stops)


def _salt(body: Json) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= _MOST_SALT:
        raise bad(f"cache_salt must be a string of 1 to {_MOST_SALT} characters", "cache_salt")
    return salt


def _integer(body: Json, name: str, default: int, low: int, high: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad(f"{name} must be an integer from {low} to {high}", name)
    return value


def _number(body: Json, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"{name} must be a number from {low} to {high}", name)
    return float(value)


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad(f"{name} must be true or false", name)
    return bool(value)


def _object(body: Json, name: str) -> Json:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad(f"{name} must be an object", name)
    return value or {}
