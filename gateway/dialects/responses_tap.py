"""Looks on while an OpenAI responses stream passes: deltas by their event's name alone, all else parsed.

The last event (`response.completed`, `response.incomplete` or `response.failed`) alone carries usage and the tier that was
served; the first ones name a provisional tier. Fees for the provider's own tools stand in `tool_usage`, beside `usage`.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.core.events import FinishReason
from gateway.core.outcome import Diagnosis
from gateway.dialects import counts
from gateway.dialects.openai_tap import error_text, load
from gateway.dialects.openai_usage import of_response
from gateway.dialects.sse import parse
from gateway.dialects.watch import Seen, Verdict

FINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
WORDS = frozenset({
    "response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta",
    "response.reasoning_text.delta", "response.reasoning_summary_text.delta", "response.custom_tool_call_input.delta",
})
_PLAIN = frozenset(word.encode() for word in WORDS)
_LONGEST = 60
_EVENT, _DATA = b"event: ", b"data: "
_valid = msgspec.json.Decoder(msgspec.Raw).decode


class Tap:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = Seen()

    def plain(self, piece: bytes) -> bool:
        end = piece.find(b"\n")
        if not self.seen.started or piece[:7] != _EVENT or piece[7:end] not in _PLAIN or piece[end + 1:end + 7] != _DATA:
            return False
        try:
            _valid(piece[end + 7:])
        except msgspec.DecodeError:
            return False
        return True

    def look(self, piece: bytes) -> Verdict:
        found = parse(piece)
        if found is None:
            return Verdict.IDLE
        if found.data.strip() == b"[DONE]":    # some servers add the other dialect's marker
            self.seen.ended = True
            return Verdict.END
        document = load(found)
        kind = document.get("type") or found.event
        if kind == "error":
            self.seen.error = error_text(document)
            return Verdict.ERROR
        if response := counts.part(document, "response"):
            note(self.seen, response)
            self._failed(response)
        self.seen.started = self.seen.started or (kind in WORDS and bool(document.get("delta")))
        if kind not in FINAL:
            return Verdict.PASS
        if self.seen.error is not None:
            return Verdict.ERROR
        self.seen.ended = True
        return Verdict.END

    def hidden(self, piece: bytes) -> bytes:
        return piece

    def _failed(self, response: Mapping[str, Any]) -> None:
        if isinstance(error := response.get("error"), dict):
            self.seen.error = error_text({"error": error})


def read_frame(piece: bytes) -> Iterator[str]:
    """What a frame adds to the answer."""
    found = parse(piece)
    if found is not None and found.data.strip() != b"[DONE]":
        document = load(found)
        if document.get("type") in WORDS and isinstance(document.get("delta"), str):
            yield document["delta"]


def note(seen: Seen, response: Mapping[str, Any]) -> None:
    """What a response object says of itself, its error aside."""
    seen.response_id = response.get("id") or seen.response_id
    seen.model = response.get("model") or seen.model
    if response.get("service_tier") not in (None, "auto"):    # which is what was asked for, not what was served
        seen.tier = response["service_tier"]
    seen.diagnosis = diagnosis(response) or seen.diagnosis
    if raw := of_response(response):
        seen.usage = raw
    if (reason := finish(response)) is not None:
        seen.finish = reason
        seen.finished.add(0)


def diagnosis(response: Mapping[str, Any]) -> Diagnosis | None:
    """What an answer says of a cache that missed; None: nothing, or that it was hit."""
    found = counts.part(response, "prompt_cache_diagnostics")
    reason = found.get("reason") if found.get("type") == "cache_miss" else found.get("type")
    tokens = found.get("cache_missed_tokens")
    if not isinstance(reason, str) or reason == "cache_hit":
        return None
    return Diagnosis(reason[:_LONGEST], tokens if type(tokens) is int and tokens >= 0 else None)


def finish(response: Mapping[str, Any]) -> FinishReason | None:
    """Why it ended, from its status and what was put out; None while it goes on, and where it failed."""
    if response.get("status") == "incomplete":
        reason = counts.part(response, "incomplete_details").get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    if response.get("status") != "completed":
        return None
    output = response.get("output") or ()
    calls = any(isinstance(item, dict) and item.get("type") == "function_call" for item in output)
    return "tool_use" if calls else "stop"
