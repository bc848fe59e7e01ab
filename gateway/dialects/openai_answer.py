"""OpenAI chat answers: a backend's chunks and bodies to events, and events to chunks and bodies for a client.

Of several choices only the first is read: no dialect that is translated to this one can ask for more. Reasoning text
travels as `reasoning_content`, Anthropic's signed blocks whole as `thinking_blocks`, so that a client can send them back.
The finish reason follows from what was sent, since a tool call labelled `stop` is simply never run.
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from gateway.dialects.openai_tap import FINISH, choices, error_text, load, tier

_WORDS: dict[FinishReason, str] = {
    "stop": "stop", "stop_sequence": "stop", "pause": "stop", "length": "length", "tool_use": "tool_calls",
    "refusal": "content_filter", "content_filter": "content_filter",
}


class decoder:
    """Frames to events. Tool calls are numbered afresh: some backends leave the index out or give all calls the same."""

    def __init__(self) -> None:
        self._started = False
        self._raw: dict[str, Any] | None = None
        self._calls: dict[Any, tuple[int, str]] = {}
        self._unnamed: dict[Any, str] = {}
        self._own: set[str] = set()
        self._made = 0
        self._id = ""

    def __call__(self, frame: sse.Frame) -> list[Event]:
        if frame.data.strip() == b"[DONE]":
            return [Ended()]
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
                    yield Finished(FINISH.get(reason, "stop"))

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        yield from said(delta)
        for place, call in enumerate(delta.get("tool_calls") or ()):
            yield from self._call(call.get("index", place), call)

    def _call(self, key: Any, call: Mapping[str, Any]) -> Iterator[Event]:
        function, name = counts.part(call, "function"), call.get("id") or ""
        known = self._calls.get(key)
        if known is None or (name and name != known[1] and (known[1] not in self._own or function.get("name"))):
            self._unnamed[key] = name or self._unnamed.get(key, "")
            if not function.get("name"):
                return
            known = (self._made, self._unnamed.pop(key) or self._named())
            self._calls[key], self._made = known, self._made + 1
            yield ToolStart(*known, function["name"])
        if arguments := function.get("arguments"):
            yield ToolDelta(known[0], arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())

    def _named(self) -> str:
        """A name of ours, which stays even if the backend's own comes with a later fragment: the client has it already."""
        name = f"call_{self._id[-16:]}_{self._made}"
        self._own.add(name)
        return name


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
        for index, call in enumerate(message.get("tool_calls") or ()):
            function = counts.part(call, "function")
            found.append(ToolStart(index, call.get("id") or f"call_{index}", function.get("name") or ""))
            found.append(ToolDelta(index, function.get("arguments") or "{}"))
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
