"""OpenAI responses answers: a backend's events and bodies to ours, and ours to a body for a client.

An answer is a list of items: messages, calls, reasoning. Reasoning that the provider lets travel (`encrypted_content`) goes
on whole, so that a client can send it back; a signed block of another provider is sealed into such an item.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
from gateway.dialects.openai_tap import error_text, load, no_arguments, tier
from gateway.dialects.responses_request import sealed
from gateway.dialects.responses_tap import FINAL, finish

_INCOMPLETE: Mapping[FinishReason | None, str] = {
    "length": "max_output_tokens", "content_filter": "content_filter", "refusal": "content_filter",
}
_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


class decoder:
    """Frames to events. Of a server that streams no deltas, the items of the last event are taken."""

    def __init__(self) -> None:
        self._started = False
        self._said = self._thought = False
        self._made = 0
        self._calls: dict[Any, int] = {}
        """Number of each call that was told, by the place of its item and by its id."""
        self._empty: set[int] = set()

    def __call__(self, frame: sse.Frame) -> list[Event]:
        if frame.data.strip() == b"[DONE]":
            return [Ended()]
        document = load(frame)
        kind = document.get("type") or frame.event or ""
        if kind == "error":
            return [_failed(document)]
        return list(self._events(kind, document))

    def _events(self, kind: str, document: Mapping[str, Any]) -> Iterator[Event]:
        response, delta = counts.part(document, "response"), document.get("delta") or ""
        if response and not self._started:
            self._started = True
            yield _head(response)
        if kind == "response.output_text.delta":
            self._said = True
            yield TextDelta(delta)
        elif kind == "response.refusal.delta":
            self._said = True
            yield RefusalDelta(delta)
        elif kind in _THOUGHTS:
            self._thought = True
            yield ThinkingDelta(delta)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = counts.part(document, "item")
            yield from self._item(kind, _place(document, item.get("id")), item)
        elif kind == "response.function_call_arguments.delta" and delta:
            index = self._calls.get(_place(document, document.get("item_id")), self._made - 1)
            if index not in self._empty or not no_arguments(delta):
                self._empty.discard(index)
                yield ToolDelta(index, delta)
        elif kind == "response.function_call_arguments.done":
            yield from self._whole(_place(document, document.get("item_id")), document)
        elif kind in FINAL:
            yield from self._end(response)

    def _item(self, kind: str, place: Any, item: Mapping[str, Any]) -> Iterator[Event]:
        if item.get("type") == "reasoning" and kind == "response.output_item.done" and item.get("encrypted_content"):
            self._thought = True
            yield ThinkingDelta(raw=item)
        if item.get("type") != "function_call":
            return
        if place not in self._calls:
            index, self._made = self._made, self._made + 1
            self._calls[place] = self._calls[_call_id(item)] = index
            self._empty.add(index)
            yield ToolStart(index, _call_id(item), item.get("name") or "")
        if kind == "response.output_item.done":
            yield from self._whole(place, item, "{}")

    def _whole(self, place: Any, holder: Mapping[str, Any], otherwise: str = "") -> Iterator[Event]:
        """Arguments as a call's last events repeat them, where no delta has told them."""
        arguments = holder.get("arguments") or ""
        if no_arguments(arguments):
            arguments = otherwise
        if arguments and (index := self._calls.get(place)) in self._empty:
            self._empty.discard(index)
            yield ToolDelta(index, arguments)

    def _end(self, response: Mapping[str, Any]) -> Iterator[Event]:
        yield from self._rest(response)
        yield from _last(response)
        if response.get("error") is None:
            yield Ended()


    def _rest(self, response: Mapping[str, Any]) -> Iterator[Event]:
        """What the last event has of an answer that was not told before."""
        said = self._said
        for item in response.get("output") or ():
            kind = item.get("type")
            if kind == "function_call" and _call_id(item) in self._calls:
                yield from self._whole(_call_id(item), item, "{}")
            elif kind == "function_call" or not (said or (kind == "reasoning" and self._thought)):
                yield from _item_events(item, self._made)
                self._made += kind == "function_call"


def _call_id(item: Mapping[str, Any]) -> str:
    return item.get("call_id") or item.get("id") or ""


def _place(document: Mapping[str, Any], item_id: Any) -> Any:
    """Which item an event is about: some servers leave its number out."""
    return document.get("output_index", item_id)


def events(document: Mapping[str, Any]) -> list[Event]:
    """A whole answer as events."""
    if isinstance(document.get("error"), dict):
        return [*_last(document)] if "object" in document else [_failed(document)]
    return [_head(document), *_output(document), *_last(document)]


def _head(response: Mapping[str, Any]) -> Started:
    return Started(response.get("id") or "", response.get("model") or "", int(response.get("created_at") or 0))


def _output(response: Mapping[str, Any]) -> Iterator[Event]:
    calls = 0
    for item in response.get("output") or ():
        yield from _item_events(item, calls)
        calls += item.get("type") == "function_call"


def _item_events(item: Mapping[str, Any], calls: int) -> Iterator[Event]:
    """A whole item; `calls` came before it."""
    match item.get("type"):
        case "message":
            yield from _words(item)
        case "function_call":
            yield ToolStart(calls, _call_id(item), item.get("name") or "")
            arguments = item.get("arguments") or ""
            yield ToolDelta(calls, "{}" if no_arguments(arguments) else arguments)
        case "reasoning":
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                yield ThinkingDelta(part.get("text") or "")
            if item.get("encrypted_content"):
                yield ThinkingDelta(raw=item)


def _words(item: Mapping[str, Any]) -> Iterator[Event]:
    for part in item.get("content") or ():
        if part.get("type") == "refusal":
            yield RefusalDelta(part.get("refusal") or "")
        else:
            yield TextDelta(part.get("text") or "")


def _last(response: Mapping[str, Any]) -> Iterator[Event]:
    if raw := openai_usage.of_response(response):
        yield Used(openai_usage.usage(raw), tier(response, None))
    if isinstance(response.get("error"), dict):
        yield _failed(response)
    elif (reason := finish(response)) is not None:
        yield Finished(reason)


def _failed(document: Mapping[str, Any]) -> Failed:
    error = counts.part(document, "error") or document
    code = error.get("code")
    return Failed(error_text(document), code if isinstance(code, str) else None)


def render_answer(found: Sequence[Event]) -> bytes:
    output: list[dict[str, Json]] = []
    calls: dict[int, dict[str, Json]] = {}
    start, usage, reason = Started("", ""), None, None
    for event in found:
        match event:
            case Started():
                start = event
            case TextDelta(text=text) | RefusalDelta(text=text) if text:
                _say(output, message_part(event, text))
            case ThinkingDelta(text=text, raw=raw):
                _think(output, text, raw)
            case ToolStart(index=index, id=name, name=function):
                calls[index] = function_call(len(output), name, function)
                output.append(calls[index])
            case ToolDelta(index=index, arguments=arguments):
                calls[index]["arguments"] += arguments
            case Used():
                usage = event.usage
            case Finished():
                reason = event.reason
    for call in calls.values():
        call["arguments"] = call["arguments"] or "{}"
    return orjson.dumps(response(start, output, reason, usage))


def _say(output: list[dict[str, Json]], part: dict[str, Json]) -> None:
    if not output or output[-1]["type"] != "message":
        output.append(message_item(len(output)))
    content = output[-1]["content"]
    field = "text" if part["type"] == "output_text" else "refusal"
    if content and content[-1]["type"] == part["type"]:
        content[-1][field] += part[field]
    else:
        content.append(part)


def _think(output: list[dict[str, Json]], text: str, raw: Mapping[str, Json] | None) -> None:
    if not output or output[-1]["type"] != "reasoning" or output[-1]["encrypted_content"]:
        output.append(reasoning_item(len(output)))
    if text:
        output[-1]["summary"] = [summary_part("".join(part["text"] for part in output[-1]["summary"]) + text)]
    if raw is not None:
        output[-1]["encrypted_content"] = sealed(raw)


def message_item(place: int) -> dict[str, Json]:
    return {"id": f"msg_{place}", "type": "message", "status": "completed", "role": "assistant", "content": []}


def message_part(event: Event, text: str) -> dict[str, Json]:
    if isinstance(event, RefusalDelta):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def function_call(place: int, name: str, function: str) -> dict[str, Json]:
    return {
        "id": f"fc_{place}", "type": "function_call", "status": "completed", "call_id": name, "name": function, "arguments": "",
    }


def reasoning_item(place: int) -> dict[str, Json]:
    return {"id": f"rs_{place}", "type": "reasoning", "summary": [], "encrypted_content": None}


def summary_part(text: str) -> dict[str, Json]:
    return {"type": "summary_text", "text": text}


def response(
    start: Started, output: Sequence[Mapping[str, Json]], reason: FinishReason | None, usage: TokenUsage | None
) -> dict[str, Json]:
    """The response object of an answer that is over. Nothing of it is stored: another dialect's backend made it."""
    cause = _INCOMPLETE.get(reason)
    return {
        **response_head(start), "status": "incomplete" if cause else "completed", "output": output,
        "incomplete_details": {"reason": cause} if cause else None, "usage": None if usage is None else usage_body(usage),
    }


def response_head(start: Started) -> dict[str, Json]:
    """The response object of an answer that has begun."""
    created = start.created_s or int(time.time())
    name = start.id if start.id.startswith("resp_") else f"resp_{start.id or created}"
    return {
        "id": name, "object": "response", "created_at": created, "status": "in_progress", "background": False, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "model": start.model, "output": [],
        "parallel_tool_calls": True, "previous_response_id": None, "store": False, "temperature": None,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None, "truncation": "disabled",
        "usage": None,
    }


def usage_body(usage: TokenUsage) -> dict[str, Json]:
    """Counts in this dialect's shape: cached and written tokens are part of the input."""
    return {
        "input_tokens": usage.input_total,
        "input_tokens_details": {"cached_tokens": usage.cache_read or 0, "cache_write_tokens": usage.written},
        "output_tokens": usage.output or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.input_total + (usage.output or 0),
    }
