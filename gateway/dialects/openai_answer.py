"""OpenAI chat answers: a backend's chunks and bodies to events, and events to chunks and bodies for a client.

Of several choices only the first is read: no dialect that is translated to this one can ask for more. Reasoning text
travels as `reasoning_content`, Anthropic's signed blocks whole as `thinking_blocks`, so that a client can send them back.
The finish reason follows from what was sent, since a tool call labelled `stop` is simply never run.
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

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
from gateway.dialects import counts, openai_usage, sse
from gateway.dialects.openai_tap import FINISH, choices, error_text, load, no_arguments, tier, tool_calls

_WORDS: dict[FinishReason, str] = {
    "stop": "stop", "stop_sequence": "stop", "pause": "stop", "length": "length", "tool_use": "tool_calls",
    "refusal": "content_filter", "content_filter": "content_filter",
}


@dataclass(slots=True)
class _ToolCall:
    """A tool call under way. Its name may come in pieces, so it is told once the arguments begin, or words, or the end."""

    id: str = ""
    name: str = ""
    index: int | None = None
    """Its number, from the first piece of its name on."""
    told: bool = False
    begun: bool = False
    """Whether its arguments have: blanks and `null` before them are none."""
    named_by_us: bool = False

    def name_piece(self, piece: str) -> None:
        """Pieces join; a name that is repeated whole, as some backends do in every fragment, stays as it is."""
        if piece != self.name:
            self.name += piece

    def is_another(self, name: str, function: Mapping[str, Any]) -> bool:
        """Whether a fragment begins a further call though its place is taken. An id of ours stays even if the backend's own
        comes with a later fragment: the client has it already."""
        if not name or name == self.id or not (self.id or self.told):
            return False
        return not self.named_by_us or bool(function.get("name"))


class decoder:
    """Frames to events. Tool calls are numbered afresh: some backends leave the index out or give all calls the same."""

    def __init__(self) -> None:
        self._started = False
        self._raw: dict[str, Any] | None = None
        self._calls: dict[Any, _ToolCall] = {}
        self._made = 0
        self._id = ""

    def __call__(self, frame: sse.Frame) -> list[Event]:
        if frame.data.strip() == b"[DONE]":
            return [*self._told(), Ended()]
        document = load(frame)
        if frame.event == "error" or document.get("error"):
            return [_failed(document)]
        return list(self._events(document))

    def _events(self, document: Mapping[str, Any]) -> Iterator[Event]:
        if (raw := openai_usage.find(document)) is not None:
            self._raw = counts.merge(self._raw, raw)
            yield Used(openai_usage.usage(self._raw), tier(document, raw))
        if not self._started and document.get("choices"):
            self._started, self._id = True, document.get("id") or ""
            yield Started(self._id, document.get("model") or "", document.get("created") or 0)
        for choice in choices(document):
            if not choice.get("index"):
                yield from self._delta(choice.get("delta") or {})
                if reason := choice.get("finish_reason"):
                    yield from self._told()
                    yield Finished(FINISH.get(reason, "stop"))

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        if words := [*said(delta)]:
            yield from self._told()
            yield from words
        for place, call in enumerate(tool_calls(delta)):
            yield from self._call(call.get("index", place), call)

    def _call(self, key: Any, piece: Mapping[str, Any]) -> Iterator[Event]:
        function, name = counts.part(piece, "function"), piece.get("id") or ""
        call = self._calls.setdefault(key, _ToolCall())
        if call.is_another(name, function):
            yield from self._tell(call)
            call = self._calls[key] = _ToolCall()
        if not call.told:
            call.id = call.id or name
            call.name_piece(function.get("name") or "")
            if call.name and call.index is None:
                call.index, self._made = self._made, self._made + 1
        arguments = arguments_text(function)
        if arguments and call.index is not None and (call.begun or not no_arguments(arguments)):
            yield from self._tell(call)
            call.begun = True
            yield ToolDelta(call.index, arguments)

    def _told(self) -> Iterator[Event]:
        """The calls whose names must be whole by now."""
        for call in self._calls.values():
            yield from self._tell(call)

    def _tell(self, call: _ToolCall) -> Iterator[Event]:
        if call.index is not None and not call.told:
            call.told, call.named_by_us = True, not call.id
            call.id = call.id or f"call_{self._id[-16:]}_{call.index}"
            yield ToolStart(call.index, call.id, call.name)


def arguments_text(function: Mapping[str, Any]) -> str:
    """Arguments as JSON text; some servers send the object itself."""
    found = function.get("arguments")
    return found if isinstance(found, str) else orjson.dumps(found).decode() if found else ""


def said(message: Mapping[str, Any]) -> Iterator[Event]:
    """The events of a delta's or message's words: reasoning, text, refusal."""
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        yield ThinkingDelta(str(reasoning))
    content = message.get("content")
    if isinstance(content, list):    # Mistral: typed pieces
        if thought := _texts(each.get("thinking") for each in content if isinstance(each, dict)):
            yield ThinkingDelta(thought)
        content = _texts(content)
    if content:
        yield TextDelta(content)
    if refusal := message.get("refusal"):
        yield RefusalDelta(refusal)


def _texts(pieces: object) -> str:
    """The text of typed pieces, or of lists of them."""
    if isinstance(pieces, str):
        return pieces
    if isinstance(pieces, Mapping):
        return str(pieces.get("text") or "")
    return "".join(map(_texts, pieces)) if isinstance(pieces, Iterable) else ""


def events(document: Mapping[str, Any]) -> list[Event]:
    """A whole answer as events."""
    if document.get("error"):
        return [_failed(document)]
    found: list[Event] = [Started(document.get("id") or "", document.get("model") or "", document.get("created") or 0)]
    for choice in choices(document):
        if choice.get("index"):
            continue
        message = counts.part(choice, "message")
        found += said(message)
        for index, call in enumerate(tool_calls(message)):
            function = counts.part(call, "function")
            found.append(ToolStart(index, call.get("id") or f"call_{index}", function.get("name") or ""))
            arguments = arguments_text(function)
            found.append(ToolDelta(index, "{}" if no_arguments(arguments) else arguments))
        if reason := choice.get("finish_reason"):
            found.append(Finished(FINISH.get(reason, "stop")))
    if (raw := openai_usage.find(document)) is not None:
        found.append(Used(openai_usage.usage(raw), tier(document, raw)))
    return found


class Encoder:
    """Events to chunks. What ends the answer is kept for `end`."""

    def __init__(self, *, wants_usage: bool = True) -> None:
        self._wants_usage = wants_usage
        self._head: dict[str, Json] | None = None
        self._usage: TokenUsage | None = None
        self._reason: FinishReason | None = None
        self._tools = False

    def encode(self, event: Event) -> bytes:
        match event:
            case Started():
                self._head = _head(event, "chat.completion.chunk")
                return self._chunk({"role": "assistant", "content": ""})
            case Used(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                self._reason = reason
            case ToolStart(index=index, id=name, name=function):
                self._tools = True
                call = {"index": index, "id": name, "type": "function", "function": {"name": function, "arguments": ""}}
                return self._chunk({"tool_calls": [call]})
            case ToolDelta(index=index, arguments=arguments) if arguments:
                return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
            case TextDelta(text=text) if text:
                return self._chunk({"content": text})
            case RefusalDelta(text=text) if text:
                return self._chunk({"refusal": text})
            case ThinkingDelta(raw=raw) if raw is not None:
                return self._chunk({"thinking_blocks": [raw]})
            case ThinkingDelta(text=text) if text:
                return self._chunk({"reasoning_content": text})
        return b""

    def end(self) -> bytes:
        out = self._chunk({}, _finish(self._reason, self._tools))
        if self._wants_usage and self._usage is not None and self._head is not None:
            out += sse.frame(orjson.dumps({**self._head, "choices": [], "usage": usage_body(self._usage)}))
        return out + b"data: [DONE]\n\n"

    def _chunk(self, delta: Mapping[str, Json], finish: str | None = None) -> bytes:
        if self._head is None:
            self._head = _head(Started("", ""), "chat.completion.chunk")
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse.frame(orjson.dumps({**self._head, "choices": [choice]}))


def render_answer(found: Sequence[Event]) -> bytes:
    texts: dict[type, str] = {TextDelta: "", RefusalDelta: "", ThinkingDelta: ""}
    blocks: list[Mapping[str, Any]] = []
    calls: list[dict[str, Json]] = []
    head, usage, reason = _head(Started("", ""), "chat.completion"), None, None
    for event in found:
        match event:
            case Started():
                head = _head(event, "chat.completion")
            case ThinkingDelta(raw=raw) if raw is not None:
                blocks.append(raw)
            case TextDelta(text=text) | RefusalDelta(text=text) | ThinkingDelta(text=text):
                texts[type(event)] += text
            case ToolStart(id=name, name=function):
                calls.append({"id": name, "type": "function", "function": {"name": function, "arguments": ""}})
            case ToolDelta(index=index, arguments=arguments):
                calls[index]["function"]["arguments"] += arguments
            case Used():
                usage = event.usage
            case Finished():
                reason = event.reason
    message: dict[str, Json] = {"role": "assistant", "content": texts[TextDelta] or (None if calls else "")}
    message["refusal"] = texts[RefusalDelta] or None
    optional = {"reasoning_content": texts[ThinkingDelta], "thinking_blocks": blocks, "tool_calls": calls}
    message.update({name: value for name, value in optional.items() if value})
    choice = {"index": 0, "message": message, "finish_reason": _finish(reason, bool(calls))}
    answer = {**head, "choices": [choice]}
    if usage is not None:
        answer["usage"] = usage_body(usage)
    return orjson.dumps(answer)


def usage_body(usage: TokenUsage) -> dict[str, Json]:
    """Counts in this dialect's shape: cached and written tokens are part of the prompt."""
    details: dict[str, Json] = {"cached_tokens": usage.cache_read or 0}
    if usage.written:
        details["cache_write_tokens"] = usage.written
    body = {
        "prompt_tokens": usage.input_total,
        "completion_tokens": usage.output or 0,
        "total_tokens": usage.input_total + (usage.output or 0),
        "prompt_tokens_details": details,
    }
    if usage.reasoning is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return body


def _head(event: Started, kind: str) -> dict[str, Json]:
    """The members that all chunks repeat. Anthropic says no time of creation: then it is now."""
    created = event.created_s or int(time.time())
    return {"id": event.id or f"chatcmpl-{created}", "object": kind, "created": created, "model": event.model}


def _finish(reason: FinishReason | None, tools: bool) -> str:
    if reason in (None, "stop", "tool_use"):
        return "tool_calls" if tools else "stop"
    return _WORDS[reason]


def _failed(document: Mapping[str, Any]) -> Failed:
    code = counts.part(document, "error").get("code")
    return Failed(error_text(document), code if isinstance(code, str) else None)
