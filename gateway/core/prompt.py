"""The request in no provider's words: what the translated road between two dialects passes on.

The road where dialect in = dialect out never makes one of these: there the body's bytes travel, spliced in place.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    text: str
    cache: Mapping[str, Json] | None = None
    """The client's own cache marker on this part, if it set one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`url` is https or a data URL."""

    url: str
    detail: str | None = None
    cache: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file to be read, most often a PDF. `url` is https or a data URL."""

    url: str
    name: str | None = None
    cache: Mapping[str, Json] | None = None


Shown = Text | Image | Document
"""What a speaker or a tool shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A reasoning block, passed on as it came: `raw` is the provider's own block with its signature."""

    raw: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    id: str
    name: str
    arguments: str
    """JSON text exactly as it was sent."""
    cache: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    id: str
    parts: tuple[Shown, ...]
    is_error: bool = False
    cache: Mapping[str, Json] | None = None


Part = Shown | Thinking | ToolUse | ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]
    name: str | None = None
    """Who of several speaks, where the client says so; where a dialect has no names, `backends/fields.py` tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    description: str | None
    parameters: Json
    """A JSON Schema, key order kept."""
    strict: bool | None = None
    cache: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    mode: Literal["auto", "none", "required", "named"]
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A whole request. `system` messages stand in `messages` where the client put them."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    stream: bool = False
    wants_usage: bool = True
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    user: str | None = None
    response_schema: Json = None
    """Structured output: `{"name", "schema", "strict"}`, key order kept."""
    json_object: bool = False
    """The answer is to be some JSON object."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Fields of the client's dialect without a word here; a renderer passes on what the target knows, refuses the rest."""
