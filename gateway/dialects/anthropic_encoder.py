"""Our events to an Anthropic stream for a client.

The client may see one open block at a time, numbered without gaps, while other dialects interleave fragments of several
tool calls. So one block is live and the rest wait, in order: a live tool call gives way when its arguments are whole
JSON, else at the end of the answer.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import orjson

from gateway.core.events import Event, Finished, RefusalDelta, Started, TextDelta, ThinkingDelta, ToolDelta, ToolStart, Used
from gateway.core.prompt import Json
from gateway.core.usage import TokenUsage
from gateway.dialects import sse
from gateway.dialects.anthropic_answer import message, stop_reason, usage_body


@dataclass(slots=True)
class _Block:
    """A content block under way; `deltas` are those that could not be sent yet."""

    start: dict[str, Json]
    tool: int | None = None
    deltas: list[str] = field(default_factory=list)
    sent: str = ""

    @property
    def kind(self) -> str:
        return str(self.start["type"])

    @property
    def whole(self) -> bool:
        """Whether nothing more can come: of tool calls only, and only once their arguments are a JSON object."""
        text = self.sent.strip()
        if self.tool is None or not (text.startswith("{") and text.endswith("}")):
            return self.tool is None
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError:
            return False
        return True


class Encoder:
    """Events to a stream of blocks that open and close one at a time."""

    def __init__(self, *, wants_usage: bool = True) -> None:
        self._usage: TokenUsage | None = None
        self._finish: Finished | None = None
        self._begun = self._tools = self._refused = False
        self._index = -1
        self._live: _Block | None = None
        self._waiting: list[_Block] = []

    def encode(self, event: Event) -> bytes:
        match event:
            case Started():
                return self._begin(event)
            case Used(usage=usage):
                self._usage = usage
            case Finished():
                self._finish = event
            case ToolStart(index=index, id=name, name=function):
                self._tools = True
                return self._start(_Block({"type": "tool_use", "id": name, "name": function, "input": {}}, index))
            case ToolDelta(index=index, arguments=arguments):
                return self._arguments(index, arguments)
            case RefusalDelta(text=text):
                self._refused = True
                return self._words("text", text)
            case TextDelta(text=text):
                return self._words("text", text)
            case ThinkingDelta(text=text):
                return self._words("thinking", text)
        return b""

    def end(self) -> bytes:
        out = b"" if self._begun else self._begin(Started("", ""))
        out += self._close()
        while self._waiting:
            out += self._open(self._waiting.pop(0)) + self._close()
        reason = "refusal" if self._refused else stop_reason(self._finish, self._tools)
        delta = {"stop_reason": reason, "stop_sequence": self._finish.stop_sequence if self._finish else None}
        usage = {"output_tokens": 0} if self._usage is None else usage_body(self._usage)
        return out + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def _begin(self, event: Started) -> bytes:
        self._begun = True
        usage = {"input_tokens": 0, "output_tokens": 0} if self._usage is None else usage_body(self._usage)
        return _event("message_start", message=message(event, [], None, None, usage))

    def _start(self, block: _Block) -> bytes:
        if self._live is not None and not self._live.whole:
            self._waiting.append(block)
            return b""
        return self._close() + self._open(block)

    def _words(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        if self._live is not None and self._live.kind == kind:
            return self._delta(self._live, text)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.kind == kind:
            last.deltas.append(text)
            return b""
        start = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        return self._start(_Block(start, deltas=[text]))

    def _arguments(self, index: int, text: str) -> bytes:
        for block in self._waiting:
            if block.tool == index:
                block.deltas.append(text)
                return b""
        if self._live is None or self._live.tool != index:
            if text.strip():
                raise sse.Malformed("The backend went on with a tool call whose arguments were whole already.")
            return b""
        out = self._delta(self._live, text)
        while self._waiting and self._live is not None and self._live.whole:
            out += self._close() + self._open(self._waiting.pop(0))
        return out

    def _open(self, block: _Block) -> bytes:
        self._index += 1
        self._live = block
        out = _event("content_block_start", index=self._index, content_block=block.start)
        text, block.deltas = "".join(block.deltas), []
        return out + self._delta(block, text)

    def _delta(self, block: _Block, text: str) -> bytes:
        if not text:
            return b""
        if block.tool is not None:
            block.sent += text
            delta = {"type": "input_json_delta", "partial_json": text}
        else:
            delta = {"type": f"{block.kind}_delta", block.kind: text}
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._live is None:
            return b""
        self._live = None
        return _event("content_block_stop", index=self._index)


def _event(kind: str, **members: Json) -> bytes:
    return sse.frame(orjson.dumps({"type": kind, **members}), kind)
