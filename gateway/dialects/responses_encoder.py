"""Our events to an OpenAI responses stream for a client.

Every item is announced, filled and closed, and the last event repeats the whole answer. Items may be open side by side
here, so fragments of several tool calls go out as they come; a call is closed once its arguments are whole JSON and
something else begins, else at the end of the answer.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import orjson

from gateway.core.events import (
    Event,
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
from gateway.dialects import responses_answer as form
from gateway.dialects import sse
from gateway.dialects.responses_request import sealed

_KINDS: dict[str, tuple[str, str, str]] = {
    "output_text": ("content_index", "response.content_part", "response.output_text"),
    "refusal": ("content_index", "response.content_part", "response.refusal"),
    "summary_text": ("summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text"),
}
"""Kind of a part: how its place is named, and how the events of the part and of its text begin."""

_EMPTY: Mapping[str, dict[str, Json]] = {"output_text": {"logprobs": []}}
"""Members of a text event that clients expect though we have nothing to put there."""


@dataclass(slots=True)
class _Item:
    """An output item under way. `parts` are those of a message or a reasoning; a call has arguments instead."""

    wire: dict[str, Json]
    place: int
    parts: list[dict[str, Json]] = field(default_factory=list)
    open: bool = True

    @property
    def kind(self) -> str:
        return str(self.wire["type"])

    @property
    def whole(self) -> bool:
        """Whether nothing more is to come: of a call, only once its arguments are JSON."""
        if self.kind != "function_call":
            return True
        try:
            return isinstance(msgspec.json.decode(self.wire["arguments"]), dict)
        except msgspec.DecodeError:
            return False


class Encoder:
    """Events to a stream of items."""

    def __init__(self, *, wants_usage: bool = True) -> None:
        self._start: Started | None = None
        self._usage: TokenUsage | None = None
        self._reason: FinishReason | None = None
        self._number = 0
        self._items: list[_Item] = []
        self._calls: dict[int, _Item] = {}

    def encode(self, event: Event) -> bytes:
        match event:
            case Started():
                return self._begin(event)
            case Used(usage=usage):
                self._usage = usage
            case Finished(reason=reason):
                self._reason = reason
            case ToolStart(index=index, id=name, name=function):
                out, self._calls[index] = self._open(form.function_call(len(self._items), name, function))
                return out
            case ToolDelta(index=index, arguments=arguments) if arguments:
                return self._arguments(self._calls[index], arguments)
            case TextDelta(text=text) | RefusalDelta(text=text) if text:
                return self._text("message", form.message_part(event, ""), text)
            case ThinkingDelta(raw=raw) if raw is not None:
                return self._sealed(sealed(raw))
            case ThinkingDelta(text=text) if text:
                return self._text("reasoning", form.summary_part(""), text)
        return b""

    def end(self) -> bytes:
        out = b"" if self._start is not None else self._begin(Started("", ""))
        out += b"".join(self._close(item) for item in self._items)
        assert self._start is not None
        response = form.response(self._start, [item.wire for item in self._items], self._reason, self._usage)
        return out + self._event(f"response.{response['status']}", response=response)

    def _begin(self, event: Started) -> bytes:
        self._start = event
        head = form.response_head(event)
        return self._event("response.created", response=head) + self._event("response.in_progress", response=head)

    def _open(self, wire: dict[str, Json]) -> tuple[bytes, _Item]:
        out = b"".join(self._close(item) for item in self._items if item.whole)
        item = _Item(wire, len(self._items))
        self._items.append(item)
        shown = {**wire, "status": "in_progress"} if "status" in wire else wire
        return out + self._event("response.output_item.added", output_index=item.place, item=shown), item

    def _text(self, kind: str, part: dict[str, Json], text: str) -> bytes:
        out, item = b"", self._items[-1] if self._items else None
        if item is None or item.kind != kind or not item.open:
            place = len(self._items)
            out, item = self._open(form.message_item(place) if kind == "message" else form.reasoning_item(place))
        index, of_part, of_text = _KINDS[part["type"]]
        if not item.parts or item.parts[-1]["type"] != part["type"]:
            out += self._close_part(item)
            item.parts.append(part)
            out += self._event(f"{of_part}.added", **self._at(item, index), part=part)
        name = "refusal" if part["type"] == "refusal" else "text"
        item.parts[-1] = {**item.parts[-1], name: item.parts[-1][name] + text}
        return out + self._event(f"{of_text}.delta", **self._at(item, index), delta=text, **_EMPTY.get(part["type"], {}))

    def _sealed(self, text: str) -> bytes:
        out, item = b"", self._items[-1] if self._items else None
        if item is None or item.kind != "reasoning" or not item.open:
            out, item = self._open(form.reasoning_item(len(self._items)))
        item.wire["encrypted_content"] = text
        return out + self._close(item)

    def _arguments(self, item: _Item, text: str) -> bytes:
        if not item.open:
            if text.strip():
                raise sse.Malformed("The backend went on with a tool call whose arguments were whole already.")
            return b""
        item.wire["arguments"] += text
        known = {"output_index": item.place, "item_id": item.wire["id"]}
        return self._event("response.function_call_arguments.delta", **known, delta=text)

    def _close(self, item: _Item) -> bytes:
        if not item.open:
            return b""
        item.open, out = False, b""
        if item.kind == "function_call":
            item.wire["arguments"] = text = item.wire["arguments"] or "{}"
            known = {"output_index": item.place, "item_id": item.wire["id"], "name": item.wire["name"]}
            out = self._event("response.function_call_arguments.done", **known, arguments=text)
        else:
            out = self._close_part(item)
            item.wire["content" if item.kind == "message" else "summary"] = item.parts
        return out + self._event("response.output_item.done", output_index=item.place, item=item.wire)

    def _close_part(self, item: _Item) -> bytes:
        if not item.parts:
            return b""
        part = item.parts[-1]
        index, of_part, of_text = _KINDS[part["type"]]
        name = "refusal" if part["type"] == "refusal" else "text"
        text = {name: part[name], **_EMPTY.get(part["type"], {})}
        out = self._event(f"{of_text}.done", **self._at(item, index), **text)
        return out + self._event(f"{of_part}.done", **self._at(item, index), part=part)

    def _at(self, item: _Item, index: str) -> dict[str, Json]:
        return {"item_id": item.wire["id"], "output_index": item.place, index: len(item.parts) - 1}

    def _event(self, kind: str, **members: Json) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.frame(orjson.dumps({"type": kind, "sequence_number": number, **members}), kind)
