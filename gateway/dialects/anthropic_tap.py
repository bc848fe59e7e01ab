"""Looks on while an Anthropic stream passes: deltas by their event's name alone, all else parsed."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.core.events import FinishReason
from gateway.dialects import anthropic_usage, counts
from gateway.dialects.openai_tap import error_text, load
from gateway.dialects.sse import parse
from gateway.dialects.watch import Seen, Verdict

STOP: dict[str, FinishReason] = {
    "end_turn": "stop", "max_tokens": "length", "stop_sequence": "stop_sequence", "tool_use": "tool_use",
    "pause_turn": "pause", "refusal": "refusal", "model_context_window_exceeded": "length",
}
_DELTA = b"event: content_block_delta\ndata: "
_SIZE = len(_DELTA)
_valid = msgspec.json.Decoder(msgspec.Raw).decode


class Tap:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = Seen()

    def plain(self, piece: bytes) -> bool:
        if not self.seen.started or piece[:_SIZE] != _DELTA:
            return False
        try:
            _valid(piece[_SIZE:])
        except msgspec.DecodeError:
            return False
        return True

    def look(self, piece: bytes) -> Verdict:
        found = parse(piece)
        if found is None:
            return Verdict.IDLE
        document = load(found)
        match document.get("type") or found.event:
            case "ping":
                return Verdict.PING
            case "error":
                self.seen.error = error_text(document)
                return Verdict.ERROR
            case "message_stop":
                self.seen.ended = True
                return Verdict.END
            case "message_start":
                self._start(counts.part(document, "message"))
            case "message_delta":
                self._delta(document)
            case "content_block_start":
                block = counts.part(document, "content_block")
                self.seen.started = self.seen.started or bool(block.get("name") or block.get("text") or block.get("data"))
            case "content_block_delta":
                self.seen.started = True
        return Verdict.PASS

    def hidden(self, piece: bytes) -> bytes:
        return piece

    def _start(self, message: Mapping[str, Any]) -> None:
        seen = self.seen
        seen.response_id, seen.model = message.get("id"), message.get("model")
        seen.provisional, seen.diagnosis = True, anthropic_usage.diagnosis(message)
        self._usage(counts.part(message, "usage"))

    def _delta(self, document: Mapping[str, Any]) -> None:
        raw, delta = counts.part(document, "usage"), counts.part(document, "delta")
        if raw.get("output_tokens") is not None:
            self.seen.provisional = False
        self._usage(raw)
        if reason := delta.get("stop_reason"):
            self.seen.finish = STOP.get(reason, "stop")
            self.seen.finished.add(0)

    def _usage(self, raw: Mapping[str, Any]) -> None:
        if raw:
            self.seen.usage = merged = counts.merge(self.seen.usage, raw)
            self.seen.tier, self.seen.region = anthropic_usage.tier(merged), anthropic_usage.region(merged)


def read_frame(piece: bytes) -> Iterator[str]:
    """What a frame adds to the answer: text, thinking, names and input of tool calls."""
    found = parse(piece)
    if found is None:
        return
    document = load(found)
    block, delta = counts.part(document, "content_block"), counts.part(document, "delta")
    for part, name in ((block, "name"), (block, "text"), (delta, "text"), (delta, "thinking"), (delta, "partial_json")):
        if isinstance(text := part.get(name), str) and text:
            yield text
