"""Deltas of the engine as OpenAI chat answers: chunks of a stream, or one body.

Both are made by the same `Teller`, so that they cannot disagree: it turns deltas into pieces (text, calls, finish),
and the two renderings only differ in the wrapping.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from inference.ask import Delta, Usage
from inference.chat import ChatRequest
from inference.parameters import Requested
from inference.sampling import Logprob
from inference.tokenizer import Tokenizer
from inference.tools import CallFinder, ToolCall

Json = dict[str, Any]
_MARK = "\0"


@dataclass(slots=True)
class Teller(ABC):
    """One answer: its id and head, and what has been told of it so far, as chunks of a stream or as one body."""

    request: Requested
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    _around: tuple[bytes, bytes] = field(init=False)
    kind: ClassVar[str]  # of a chunk
    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        before, after = frame(self.text_chunk(_MARK)).split(orjson.dumps(_MARK))
        self._around = before, after

    def frames(self, delta: Delta) -> bytes:
        """A delta as server-sent events. Most are nothing but text: of those only the text is put together anew."""
        if delta.reason is not None or delta.logprobs or not self.plain:
            return b"".join(map(frame, self.chunks(delta)))
        return self._around[0] + orjson.dumps(delta.text) + self._around[1] if delta.text else b""

    @property
    def plain(self) -> bool:
        """Text is told as it comes."""
        return True

    def opening(self) -> Iterable[Json]:
        """What comes before the first delta."""
        return ()

    @abstractmethod
    def text_chunk(self, text: str) -> Json:
        """The chunk that tells some text and nothing else."""

    @abstractmethod
    def chunks(self, delta: Delta) -> Iterator[Json]:
        """The chunks for one delta, with finish and usage at the end."""

    @abstractmethod
    def add(self, delta: Delta) -> None:
        """Take a delta in without telling it yet."""

    @abstractmethod
    def body(self, delta: Delta) -> Json:
        """The whole answer; call after all deltas went through `add`, with the last one."""

    def head(self, kind: str) -> Json:
        """What every chunk and body begins with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": self.request.ask.lane.tier,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(slots=True)
class ChatTeller(Teller):
    """An answer in a chat: a message, calls, a finish."""

    request: ChatRequest
    _finder: CallFinder = field(default_factory=CallFinder)
    _text: str = ""
    _content: str = ""
    _calls: list[Json] = field(default_factory=list)
    _logprobs: list[Json] = field(default_factory=list)
    kind: ClassVar[str] = "chat.completion.chunk"
    prefix: ClassVar[str] = "chatcmpl"

    @property
    def plain(self) -> bool:
        return self.request.forced is None and not self.request.finds_calls

    def opening(self) -> list[Json]:
        """The first chunk: the role."""
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def text_chunk(self, text: str) -> Json:
        return self._chunk({"content": text})

    def chunks(self, delta: Delta) -> Iterator[Json]:
        entries = [_entry(logprob, self.tokenizer) for logprob in delta.logprobs]
        for piece in self._pieces(delta):
            yield self._chunk(piece, logprobs=entries)
            entries = []
        if entries:
            yield self._chunk({"content": ""}, logprobs=entries)
        if delta.reason is not None:
            yield self._chunk({}, finish=self._finish(delta.reason))
            if self.request.include_usage:
                yield self.head(self.kind) | {"choices": [], "usage": usage_json(delta.usage)}

    def body(self, delta: Delta) -> Json:
        message: Json = {"role": "assistant", "content": self._content or None, "refusal": None}
        if self._calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in self._calls]
        else:
            message["content"] = self._content
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if self._wants_logprobs else None,
            "finish_reason": self._finish(delta.reason or "stop"),
        }
        return self.head("chat.completion") | {"choices": [choice], "usage": usage_json(delta.usage)}

    def add(self, delta: Delta) -> None:
        self._logprobs += [_entry(logprob, self.tokenizer) for logprob in delta.logprobs]
        for _ in self._pieces(delta):
            pass

    @property
    def _wants_logprobs(self) -> bool:
        return self.request.ask.sampling.logprobs is not None

    def _pieces(self, delta: Delta) -> Iterator[Json]:
        """What a delta adds to the message; a forced call is told in one piece, when it is complete."""
        if self.request.forced is not None:
            self._text += delta.text
            if delta.reason is not None:
                yield self._call(self.request.forced.call(self._text))
            return
        parts: list[str | ToolCall] = [delta.text] if delta.text else []
        if self.request.finds_calls:
            parts = self._finder.push(delta.text)
            parts += self._finder.finish() if delta.reason is not None else []
        for part in parts:
            if isinstance(part, ToolCall):
                yield self._call(part)
            else:
                self._content += part
                yield {"content": part}

    def _call(self, call: ToolCall) -> Json:
        entry = {
            "index": len(self._calls),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        self._calls.append(entry)
        return {"tool_calls": [entry]}

    def _finish(self, reason: str) -> str:
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _chunk(self, delta: Json, *, finish: str | None = None, logprobs: list[Json] | None = None) -> Json:
        told = {"content": logprobs, "refusal": None} if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": told, "finish_reason": finish}
        chunk = self.head(self.kind) | {"choices": [choice]}
        return chunk | {"usage": None} if self.request.include_usage else chunk


def frame(event: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


def usage_json(usage: Usage) -> Json:
    """Usage in OpenAI's shape; cached tokens are always told, also 0."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _entry(logprob: Logprob, tokenizer: Tokenizer) -> Json:
    top = [_named(token, value, tokenizer) for token, value in logprob.top]
    return _named(logprob.token, logprob.value, tokenizer) | {"top_logprobs": top}


def _named(token: int, value: float, tokenizer: Tokenizer) -> Json:
    piece = tokenizer.piece(token)
    return {"token": piece.decode(errors="replace"), "logprob": value, "bytes": list(piece)}
