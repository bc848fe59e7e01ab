"""What a provider answers: usage in its own form, whole or as a stream, and its errors."""
from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.providers.marked import Used

OUTPUT_TOKENS = 20
_TEXT = "The toll is paid."
_ids = itertools.count(1)
Json = dict[str, Any]


def openai_usage(provider: str, model: str, used: Used) -> Json:
    """Cached and written tokens stand inside the prompt's."""
    details: Json = {"cached_tokens": used.read, "audio_tokens": 0}
    usage: Json = {"prompt_tokens": used.total, "completion_tokens": OUTPUT_TOKENS, "total_tokens": used.total + OUTPUT_TOKENS,
                   "prompt_tokens_details": details, "completion_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    written = sum(used.written.values())
    if provider == "openai-5.6":
        details["cache_write_tokens"] = written
    elif provider == "kimi":
        details["cache_write_tokens"], usage["cached_tokens"] = written, used.read
    elif provider == "qwen" and used.explicit:
        details["cache_creation_input_tokens"] = written
        details["cache_creation"] = {"ephemeral_5m_input_tokens": written}
    return usage


def anthropic_usage(used: Used, output: int) -> Json:
    """Cached and written tokens stand beside the input's."""
    written = {f"ephemeral_{ttl}_input_tokens": used.written.get(ttl, 0) for ttl in ("5m", "1h")}
    return {"input_tokens": used.uncached, "cache_creation_input_tokens": sum(written.values()),
            "cache_read_input_tokens": used.read, "cache_creation": written,
            "output_tokens": output, "service_tier": "standard"}  # fmt: skip


def new_id() -> str:
    """Of an answer."""
    return f"sim-{next(_ids)}"


def answer(
    name: str, provider: str, wire: str, body: Mapping[str, Any], used: Used, diagnostics: Json | None = None
) -> tuple[str, list[bytes]]:
    """Content type and pieces of the answer; the first piece is its beginning."""
    model = body["model"]
    if wire == "anthropic":
        text = "" if body.get("max_tokens") == 0 else _TEXT
        return _anthropic(name, model, used, stream=bool(body.get("stream")), text=text, diagnostics=diagnostics)
    usage = openai_usage(provider, model, used)
    told = bool((body.get("stream_options") or {}).get("include_usage"))
    return _openai(name, model, usage, stream=bool(body.get("stream")), told=told)


def _openai(name: str, model: str, usage: Json, *, stream: bool, told: bool) -> tuple[str, list[bytes]]:
    if not stream:
        message = {"role": "assistant", "content": _TEXT, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        whole = {"id": name, "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}
        return "application/json", [orjson.dumps(whole)]
    base = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": model}
    deltas: list[tuple[Json, str | None]] = [({"role": "assistant", "content": _TEXT}, None), ({}, "stop")]
    pieces = [_data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}) for delta, end in deltas]
    pieces += [_data({**base, "choices": [], "usage": usage})] if told else []
    return "text/event-stream", [*pieces, b"data: [DONE]\n\n"]


def diagnosis(earlier: Mapping[str, Any] | None, body: Mapping[str, Any], used: Used) -> Json | None:
    """Anthropic's word on why a prompt parts from an earlier one; None: it does not."""
    if earlier is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    changed = next((name for name in ("model", "tools", "system") if body.get(name) != earlier.get(name)), None)
    before = earlier["messages"]
    if changed is None and body["messages"][: len(before)] != before:
        changed = "messages"
    missed = {"type": f"{changed}_changed", "cache_missed_input_tokens": used.total - used.read}
    return None if changed is None else {"cache_miss_reason": missed}


def _anthropic(
    name: str, model: str, used: Used, *, stream: bool, text: str, diagnostics: Json | None
) -> tuple[str, list[bytes]]:
    output = OUTPUT_TOKENS if text else 0
    message: Json = {"id": name, "type": "message", "role": "assistant", "model": model,
                     "content": [{"type": "text", "text": text}] if text else [],
                     "stop_reason": "end_turn" if text else "max_tokens", "stop_sequence": None,
                     "usage": anthropic_usage(used, output), "diagnostics": diagnostics}  # fmt: skip
    if not stream:
        return "application/json", [orjson.dumps(message)]
    start = {**message, "content": [], "stop_reason": None, "usage": anthropic_usage(used, 1)}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
         "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]
    return "text/event-stream", [b"event: " + event["type"].encode() + b"\n" + _data(event) for event in events]


def error(wire: str, message: str, status: int = 400) -> bytes:
    """As the provider's dialect tells it."""
    kind = "invalid_request_error" if status == 400 else "not_found_error"
    told: Json = {"type": kind, "message": message}
    if wire == "anthropic":
        return orjson.dumps({"type": "error", "error": told})
    return orjson.dumps({"error": {**told, "param": None, "code": None}})


def _data(document: Json) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
