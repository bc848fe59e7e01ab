"""Tools in a chat: how they are told to the model, and how its calls are found in what it says.

A 135M model's arguments are of low quality, forced or not: expect a well-formed call, not a useful one. What is
guaranteed is the form: a call's arguments are one JSON object (`{}` where the model produced none), and a forced call
names a tool that was offered. The rendering is short, because 31 real tools must leave room in 8,192 tokens, and it
depends on nothing but the definitions, so that a conversation's prompt only ever grows at its end.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_INTRO = f'Tools. To call one, answer {OPEN}{{"name": "NAME", "arguments": {{...}}}}{CLOSE}'
_TYPES = {"string": "str", "integer": "int", "number": "num", "boolean": "bool", "array": "list", "object": "obj"}
_SENTENCE = re.compile(r"(?<=[.!?])\s|\s\*\s|\n")
_MOST_WORDS = 12
_MOST_ENUM = 8


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the client offers."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Forced:
    """How an answer is made to be a call: what it begins with, and the names it may use."""

    opening: str
    names: tuple[str, ...]

    def cut(self, text: str) -> int | None:
        """Where the arguments' object ends in what followed the opening."""
        at = text.find("{")
        return None if at < 0 else balanced_end(text, at)

    def call(self, text: str) -> ToolCall:
        """The call in what followed the opening, repaired: nearest name, `{}` for arguments that are no object."""
        at = text.find("{")
        name = self.names[0]
        if len(self.names) > 1:
            said = re.split(r'["{]', text, maxsplit=1)[0]
            name = next(iter(difflib.get_close_matches(said, self.names, 1, 0.1)), name)
        return ToolCall(name, _object_or_empty(text[at:] if at >= 0 else ""))


def force(names: Sequence[str]) -> Forced:
    """Make the answer a call of one of these tools."""
    if len(names) == 1:
        return Forced(f'{OPEN}{{"name": {json.dumps(names[0])}, "arguments": ', tuple(names))
    return Forced(f'{OPEN}{{"name": "', tuple(names))


def render_tools(tools: Sequence[Tool]) -> str:
    """One line a tool: name, parameters with types (? marks what may be left out), the description's start."""
    return "\n".join([_INTRO, *(_line(tool) for tool in tools)])


def render_call(call: ToolCall) -> tuple[str, str]:
    """A call in the history, in the two parts that a generated one is encoded in."""
    return f'{OPEN}{{"name": {json.dumps(call.name)}, "arguments": ', f"{call.arguments}}}{CLOSE}"


def render_result(text: str) -> str:
    """What a tool answered, as the user's words."""
    return f"<tool_response>\n{text}\n</tool_response>"


def balanced_end(text: str, start: int) -> int | None:
    """Behind the brace that closes the one at `start`; braces in JSON strings do not count."""
    depth, quoted, escaped = 0, False, False
    for at in range(start, len(text)):
        character = text[at]
        if quoted:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                quoted = False
        elif character == '"':
            quoted = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


class CallFinder:
    """Finds calls in streamed text. Text before and between them passes through; what is no valid call stays text."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False

    def push(self, text: str) -> list[str | ToolCall]:
        """Add text; what is certain now, in order."""
        self._held += text
        out: list[str | ToolCall] = []
        while True:
            at = self._held.find(CLOSE if self._inside else OPEN)
            if at < 0:
                break
            before, self._held = self._held[:at], self._held[at + len(CLOSE if self._inside else OPEN) :]
            out.append(_parse_call(before) or f"{OPEN}{before}{CLOSE}" if self._inside else before)
            self._inside = not self._inside
        if not self._inside:
            keep = next((n for n in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:n])), 0)
            out.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return [part for part in out if part]

    def finish(self) -> list[str | ToolCall]:
        """The end: a complete call that lacks only its closing tag counts, the rest is text."""
        held, inside = self._held, self._inside
        self._held, self._inside = "", False
        rest = (_parse_call(held) or OPEN + held) if inside else held
        return [rest] if rest else []


def _parse_call(text: str) -> ToolCall | None:
    text = text.strip()
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        return ToolCall(call["name"], _object_or_empty(arguments))
    if not isinstance(arguments, dict):
        return None
    spelled = re.search(r'"arguments"\s*:\s*(?=\{)', text)
    end = balanced_end(text, spelled.end()) if spelled else None
    as_said = text[spelled.end() : end] if spelled and end else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], as_said)


def _object_or_empty(text: str) -> str:
    try:
        return text if isinstance(json.loads(text), dict) else "{}"
    except ValueError:
        return "{}"


def _line(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    required = required if isinstance(required, list) else []
    parameters = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(schema)}"
        for name, schema in (properties.items() if isinstance(properties, dict) else ())
    )
    return f"{tool.name}({parameters}) {_first_words(tool.description)}".rstrip()


def _type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= _MOST_ENUM:
        return "|".join(str(value) for value in values)
    kind = schema.get("type")
    return _TYPES.get(kind, "any") if isinstance(kind, str) else "any"


def _first_words(description: str) -> str:
    return " ".join(_SENTENCE.split(description.strip(), maxsplit=1)[0].split()[:_MOST_WORDS])
