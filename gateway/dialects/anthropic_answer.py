"""Anthropic answers: a backend's events and bodies to ours, and ours to a body for a client.

The stop reason follows from what was sent, not from a label that may be wrong: agents look at it first.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from gateway.core.events import (
    Ended,
    Event,
    Failed,
    Finished,
    FinishReason,
    RefusalDelta,
    Started,
    TextDelta,
    ThinkingDelta,
    ToolDelta,
    ToolStart,
    Used,
)
from gateway.core.prompt import Json
from gateway.core.usage import TokenUsage
from gateway.dialects import anthropic_usage, counts, sse
from gateway.dialects.anthropic_tap import STOP
from gateway.dialects.openai_tap import error_text, load

_WORDS: dict[FinishReason, str] = {
    "stop": "end_turn", "length": "max_tokens", "stop_sequence": "stop_sequence", "tool_use": "tool_use",
    "pause": "pause_turn", "refusal": "refusal", "content_filter": "refusal",
}


@dataclass(slots=True)
class _Block:
    """A content block under way."""

    wire: dict[str, Any] = field(default_factory=dict)
    call: int | None = None
    """Its number among the tool calls."""
    told: bool = False
    """Whether its arguments have begun."""

    def closed(self) -> Iterator[Event]:
        """What can only be said at its end."""
        if self.call is not None and not self.told:     # other clients would parse an empty text
            yield ToolDelta(self.call, orjson.dumps(self.wire.get("input") or {}).decode())
        if self.wire.get("type") == "thinking" and self.wire.get("signature"):
            yield ThinkingDelta(raw=self.wire)


class decoder:
    """Frames to events. Tool calls are counted by themselves: block numbers count text blocks too. Several blocks may be open
    at once, though the API itself never does so."""

    def __init__(self) -> None:
        self._raw: dict[str, Any] = {}
        self._provisional = True
        self._tools = 0
        self._blocks: dict[Any, _Block] = {}

    def __call__(self, frame: sse.Frame) -> list[Event]:
        document = load(frame)
        match document.get("type") or frame.event:
            case "message_start":
                message = counts.part(document, "message")
                return [Started(message.get("id") or "", message.get("model") or ""), *self._used(message)]
            case "content_block_start":
                return list(self._open(document.get("index"), dict(counts.part(document, "content_block"))))
            case "content_block_delta":
                block = self._blocks.get(document.get("index")) or _Block()
                return list(self._delta(block, counts.part(document, "delta")))
            case "content_block_stop":
                return list(self._closed(document.get("index")))
            case "message_delta":
                self._provisional &= counts.part(document, "usage").get("output_tokens") is None
                delta = counts.part(document, "delta")
                return [*self._all_closed(), *self._used(document), *_finished(delta)]
            case "message_stop":
                return [*self._all_closed(), Ended()]
            case "error":
                return [_failed(document)]
        return []

    def _used(self, holder: Mapping[str, Any]) -> Iterator[Event]:
        if raw := counts.part(holder, "usage"):
            self._raw = counts.merge(self._raw, raw)
            usage = anthropic_usage.usage(self._raw)
            if self._provisional:
                usage = replace(usage, flags=(*usage.flags, "output_provisional"))
            yield Used(usage, anthropic_usage.tier(self._raw), anthropic_usage.region(self._raw))

    def _open(self, place: Any, block: dict[str, Any]) -> Iterator[Event]:
        self._blocks[place] = opened = _Block(block)
        match block.get("type"):
            case "tool_use":
                opened.call = self._tools
                self._tools += 1
                yield ToolStart(opened.call, block.get("id") or "", block.get("name") or "")
            case "text" if block.get("text"):
                yield TextDelta(block["text"])
            case "thinking" if block.get("thinking"):
                yield ThinkingDelta(block["thinking"])
            case "redacted_thinking":
                yield ThinkingDelta(raw=block)

    def _delta(self, block: _Block, delta: Mapping[str, Any]) -> Iterator[Event]:
        wire = block.wire
        match delta.get("type"):
            case "text_delta":
                yield TextDelta(delta.get("text") or "")
            case "input_json_delta" if block.call is not None and (block.told or (delta.get("partial_json") or "").strip()):
                block.told = True
                yield ToolDelta(block.call, delta["partial_json"])
            case "thinking_delta":
                wire["thinking"] = wire.get("thinking", "") + (delta.get("thinking") or "")
                yield ThinkingDelta(delta.get("thinking") or "")
            case "signature_delta":
                wire["signature"] = wire.get("signature", "") + (delta.get("signature") or "")

    def _closed(self, place: Any) -> Iterator[Event]:
        if (block := self._blocks.pop(place, None)) is not None:
            yield from block.closed()

    def _all_closed(self) -> Iterator[Event]:
        """Blocks that some servers never close."""
        for place in [*self._blocks]:
            yield from self._closed(place)


def events(document: Mapping[str, Any]) -> list[Event]:
    """A whole answer as events."""
    if document.get("type") == "error" or document.get("error"):
        return [_failed(document)]
    found: list[Event] = [Started(document.get("id") or "", document.get("model") or "")]
    tools = 0
    for block in document.get("content") or ():
        match block.get("type"):
            case "text":
                found.append(TextDelta(block.get("text") or ""))
            case "tool_use":
                arguments = orjson.dumps(block.get("input") or {}).decode()
                found += [ToolStart(tools, block.get("id") or "", block.get("name") or ""), ToolDelta(tools, arguments)]
                tools += 1
            case "thinking":
                found += [ThinkingDelta(block.get("thinking") or ""), ThinkingDelta(raw=block)]
            case "redacted_thinking":
                found.append(ThinkingDelta(raw=block))
    if raw := counts.part(document, "usage"):
        found.append(Used(anthropic_usage.usage(raw), anthropic_usage.tier(raw), anthropic_usage.region(raw)))
    return [*found, *_finished(document)]


def render_answer(found: Sequence[Event]) -> bytes:
    content: list[dict[str, Json]] = []
    arguments: dict[int, str] = {}
    start, usage, finish, refused = Started("", ""), None, None, False
    for event in found:
        match event:
            case Started():
                start = event
            case Used():
                usage = event.usage
            case Finished():
                finish = event
            case ThinkingDelta(text=text) if text:
                content.append({"type": "thinking", "thinking": text, "signature": ""})
            case TextDelta(text=text) | RefusalDelta(text=text) if text:
                refused = refused or isinstance(event, RefusalDelta)
                content.append({"type": "text", "text": text})
            case ToolStart(index=index, id=name, name=function):
                content.append({"type": "tool_use", "id": name, "name": function, "input": index})
            case ToolDelta(index=index, arguments=text):
                arguments[index] = arguments.get(index, "") + text
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = _input(arguments.get(block["input"], ""), finish)
    reason = "refusal" if refused else stop_reason(finish, bool(arguments))
    counted = {"input_tokens": 0, "output_tokens": 0} if usage is None else usage_body(usage)
    return msgspec.json.encode(message(start, content, reason, finish.stop_sequence if finish else None, counted))


def usage_body(usage: TokenUsage) -> dict[str, Json]:
    """Counts in this dialect's shape: cached and written tokens stand beside the input."""
    return {
        "input_tokens": usage.uncached or 0,
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cache_read or 0,
        "output_tokens": usage.output or 0,
    }


def message(
    start: Started, content: list[dict[str, Json]], reason: str | None, sequence: str | None, usage: Mapping[str, Json]
) -> dict[str, Json]:
    return {
        "id": start.id or "msg_0", "type": "message", "role": "assistant", "model": start.model, "content": content,
        "stop_reason": reason, "stop_sequence": sequence, "usage": usage,
    }


def _input(arguments: str, finish: Finished | None) -> msgspec.Raw:
    """Arguments as they came; those cut off by the token limit become an empty object, for the stop reason says why."""
    try:
        if isinstance(msgspec.json.decode(arguments or "{}"), dict):
            return msgspec.Raw((arguments.strip() or "{}").encode())
    except msgspec.DecodeError:
        pass
    if finish is not None and finish.reason == "length":
        return msgspec.Raw(b"{}")
    raise sse.Malformed("The backend called a tool with arguments that are not a JSON object.")


def stop_reason(finish: Finished | None, tools: bool) -> str:
    if finish is None or finish.reason in ("stop", "tool_use"):
        return "tool_use" if tools else "end_turn"
    return _WORDS[finish.reason]


def _finished(holder: Mapping[str, Any]) -> Iterator[Event]:
    if reason := holder.get("stop_reason"):
        yield Finished(STOP.get(reason, "stop"), holder.get("stop_sequence"))


def _failed(document: Mapping[str, Any]) -> Failed:
    kind = counts.part(document, "error").get("type")
    return Failed(error_text(document), kind if isinstance(kind, str) else None)
