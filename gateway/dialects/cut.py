"""The proper end of a stream that we end ourselves, in the words of a dialect whose bytes had been passed on until then.

It says what a provider says when the output limit is reached. Made from the last frame that went out, for bytes were relayed
and not decoded. A responses stream repeats its text in the end where its one open item is the first; of later items only the
end itself is told.
"""
from __future__ import annotations

import time
from typing import Any

import orjson

from gateway.dialects import sse
from gateway.dialects.openai_tap import load
from gateway.dialects.watch import Seen

_CHARACTERS_PER_TOKEN = 4


def final(dialect: str, last: bytes, seen: Seen, text: str) -> bytes:
    """The events that close a stream. `last`: the last frame that the client got, b"" for none."""
    frame = sse.parse(last) if last else None
    document = {} if frame is None else load(frame)
    if dialect == "anthropic_messages":
        return _messages(document, text)
    if dialect == "openai_responses":
        return _responses(document, seen, text)
    return _chat(document, seen)


def _chat(last: dict[str, Any], seen: Seen) -> bytes:
    open_ones = [n for n in range(seen.choices) if n not in seen.finished]
    head = {name: last[name] for name in ("id", "object", "created", "model", "system_fingerprint") if name in last}
    choices = [{"index": n, "delta": {}, "finish_reason": "length"} for n in open_ones]
    return sse.frame(orjson.dumps({**head, "choices": choices})) + b"data: [DONE]\n\n"


def _messages(last: dict[str, Any], text: str) -> bytes:
    closed = b""
    if last.get("type") in ("content_block_start", "content_block_delta"):
        closed = _event("content_block_stop", index=last.get("index", 0))
    usage = {"output_tokens": -(-len(text) // _CHARACTERS_PER_TOKEN)}
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    return closed + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")


def _responses(last: dict[str, Any], seen: Seen, text: str) -> bytes:
    number = int(last.get("sequence_number") or 0)
    out, output = b"", list[dict[str, Any]]()

    def event(kind: str, **members: Any) -> bytes:
        nonlocal number
        number += 1
        return _event(kind, sequence_number=number, **members)

    if last.get("type") == "response.output_text.delta" and not last.get("output_index") and not last.get("content_index"):
        place = {"item_id": last.get("item_id", ""), "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item = {
            "id": last.get("item_id", ""), "type": "message", "role": "assistant", "status": "incomplete", "content": [part]
        }
        out += event("response.output_text.done", **place, text=text, logprobs=[])
        out += event("response.content_part.done", **place, part=part)
        out += event("response.output_item.done", output_index=0, item=item)
        output.append(item)
    response = {
        "id": seen.response_id or "", "object": "response", "created_at": int(time.time()), "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"}, "error": None, "model": seen.model or "", "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None,
    }  # fmt: skip
    return out + event("response.incomplete", response=response)


def _event(kind: str, **members: Any) -> bytes:
    return sse.frame(orjson.dumps({"type": kind, **members}), kind)
