"""The answer in no provider's words: what a decoder yields and an encoder takes, for streams and whole bodies alike."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.core.usage import TokenUsage

FinishReason = Literal["stop", "length", "tool_use", "stop_sequence", "refusal", "content_filter", "pause"]


@dataclass(frozen=True, slots=True)
class Started:
    id: str
    model: str
    created_s: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """Reasoning text, or a whole block that travels as it came (`raw`: signature, redacted data)."""

    text: str = ""
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolStart:
    index: int
    """Counts the tool calls of this answer from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolDelta:
    index: int
    arguments: str
    """A fragment of JSON text."""


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    text: str


@dataclass(frozen=True, slots=True)
class Used:
    """Running totals: the last one seen counts, nothing is added."""

    usage: TokenUsage
    served_tier: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that the backend sent inside its stream."""

    message: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end marker: nothing comes after it."""


Event = Started | TextDelta | ThinkingDelta | ToolStart | ToolDelta | RefusalDelta | Used | Finished | Failed | Ended
