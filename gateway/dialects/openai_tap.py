"""Looks on while an OpenAI chat stream passes, parsing only the frames that say something new.

A glance (half a microsecond) reads the few members that can, checks that the rest is JSON, and decodes nothing of it.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from gateway.core.events import FinishReason
from gateway.dialects import counts, openai_usage, splice
from gateway.dialects.sse import Frame, Malformed, frame, parse
from gateway.dialects.watch import Seen, Verdict, loads

FINISH: dict[str, FinishReason] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_use", "function_call": "tool_use",
    "content_filter": "content_filter",
}


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    finish_reason: str | None = None
    usage: Any = None


class _Chunk(msgspec.Struct, gc=False):
    """What may be worth a note; all else, the delta too, is skipped without being decoded, but must be JSON."""

    choices: list[_Choice] = []
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_glance = msgspec.json.Decoder(_Chunk).decode


class Tap:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = Seen()

    def plain(self, piece: bytes) -> bool:
        if not self.seen.started or piece[:6] != b"data: ":
            return False
        try:
            chunk = _glance(piece[6:])
        except msgspec.MsgspecError:
            return False
        if chunk.usage is not None or chunk.error is not None or chunk.x_groq is not None:
            return False
        for choice in chunk.choices:
            if choice.finish_reason or choice.index or choice.usage is not None:
                return False
        return bool(chunk.choices)

    def look(self, piece: bytes) -> Verdict:
        found = parse(piece)
        if found is None:
            return Verdict.IDLE
        if found.data.strip() == b"[DONE]":
            self.seen.ended = True
            return Verdict.END
        document = load(found)
        if found.event == "error" or document.get("error"):
            self.seen.error = error_text(document)
            return Verdict.ERROR
        self._note(document)
        return Verdict.HIDE if isinstance(document.get("usage"), dict) else Verdict.PASS

    def hidden(self, piece: bytes) -> bytes:
        found = parse(piece)
        if found is None or not orjson.loads(found.data).get("choices"):
            return b""
        start = piece.find(found.data)
        if start < 0:    # data on several lines
            return frame(orjson.dumps({**orjson.loads(found.data), "usage": None}))
        places = splice.spans(found.data, where="The event")
        return piece[:start] + splice.change(found.data, places, {"usage": b"null"}) + piece[start + len(found.data):]

    def _note(self, document: Mapping[str, Any]) -> None:
        seen = self.seen
        seen.response_id = document.get("id") or seen.response_id
        seen.model = document.get("model") or seen.model
        raw = openai_usage.find(document)
        if raw is not None:
            seen.usage = counts.merge(seen.usage, raw)
        seen.tier = tier(document, raw) or seen.tier
        for choice in choices(document):
            index = choice.get("index") or 0
            seen.choices = max(seen.choices, index + 1)
            if reason := choice.get("finish_reason"):
                seen.finish = FINISH.get(reason, "stop")
                seen.finished.add(index)
            seen.started = seen.started or any(texts(choice.get("delta") or {}))


def read_frame(piece: bytes) -> Iterator[str]:
    """What a frame adds to the answer: text, reasoning, names and arguments of tool calls."""
    found = parse(piece)
    if found is not None and found.data.strip() != b"[DONE]":
        for choice in choices(load(found)):
            yield from texts(choice.get("delta") or {})


def texts(delta: Mapping[str, Any]) -> Iterator[str]:
    for name in ("reasoning_content", "reasoning", "content", "refusal"):
        if isinstance(found := delta.get(name), str) and found:
            yield found
    for call in tool_calls(delta):
        function = counts.part(call, "function")
        yield from (found for name in ("name", "arguments") if isinstance(found := function.get(name), str) and found)


def tool_calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The calls of a message or delta, the one of the older API (`function_call`) among them."""
    if found := message.get("tool_calls"):
        return found    # type: ignore[no-any-return]
    older = counts.part(message, "function_call")
    return ({"index": 0, "function": older},) if older else ()


def no_arguments(text: str) -> bool:
    """Whether a text of arguments says nothing, which to clients is an empty object."""
    return text.strip() in ("", "null")


def choices(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (choice for choice in document.get("choices") or () if isinstance(choice, dict))


def tier(document: Mapping[str, Any], raw: Mapping[str, Any] | None) -> str | None:
    """The tier that was served; Mistral says it in the usage object. `auto` is what was asked for and says nothing."""
    found = document.get("service_tier") or (raw or {}).get("service_tier")
    return found if isinstance(found, str) and found != "auto" else None


def load(found: Frame) -> dict[str, Any]:
    try:
        document = loads(found.data)
    except orjson.JSONDecodeError:
        raise Malformed("The backend sent an event that is not JSON.") from None
    if not isinstance(document, dict):
        raise Malformed("The backend sent an event that is not a JSON object.")
    return document


def error_text(document: Mapping[str, Any]) -> str:
    """The message in an error of either shape, or of none that we know."""
    error = document.get("error", document)
    if isinstance(error, dict):
        error = error.get("message") or error.get("type") or error.get("code")
    return str(error or document.get("message") or document.get("detail") or "The backend reported an error.")
