"""Anthropic Messages, as callers send them to us and as we send them to backends.

Usage comes without asking, its input side already in the first event. The dialect has a ping of its own. The system
prompt is a field beside the messages, and the provider renders tools, system, messages in this order.
"""
from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.core.call import Sketch
from gateway.core.errors import GatewayError
from gateway.core.outcome import Observed
from gateway.core.part import Part
from gateway.dialects import anthropic_tap, anthropic_usage, counts, errors, facts, openai_tap, splice, sse
from gateway.dialects.anthropic_answer import decoder as decoder
from gateway.dialects.anthropic_answer import events as events
from gateway.dialects.anthropic_answer import render_answer as render_answer
from gateway.dialects.anthropic_encoder import Encoder as Encoder
from gateway.dialects.anthropic_request import parse_request as parse_request
from gateway.dialects.anthropic_request import render_request as render_request
from gateway.dialects.anthropic_tap import Tap as Tap
from gateway.dialects.anthropic_tap import read_frame as read_frame
from gateway.dialects.anthropic_usage import usage as usage
from gateway.dialects.watch import Seen, document_of

NAME, PATH = "anthropic_messages", "/v1/messages"
PING = sse.frame(b'{"type":"ping"}', "ping")
END = sse.frame(b'{"type":"message_stop"}', "message_stop")
PROMPT_FIELDS: tuple[str, ...] = ("tools", "system", "messages")


def sketch(body: bytes, places: splice.Spans, parts: Sequence[Part], usual: facts.Usual | None = None) -> Sketch:
    if usual is not None and usual.messages is not None:
        return Sketch(
            model=usual.model, stream=bool(usual.stream), spans=places, parts=parts, max_output_tokens=usual.max_tokens,
            service_tier=usual.service_tier, has_tools=bool(usual.tools),
        )  # fmt: skip
    model = facts.required_text(body, places, "model")
    most = facts.count(body, places, "max_tokens")
    facts.array(body, places, "messages", required=True)
    return Sketch(
        model=model,
        stream=facts.flag(body, places, "stream"),
        spans=places,
        parts=parts,
        max_output_tokens=most,
        service_tier=facts.text(body, places, "service_tier"),
        has_tools=facts.array(body, places, "tools"),
    )


def usage_asked(body: bytes, places: splice.Spans) -> None:
    return None    # it comes unasked


def error_body(told: errors.Told) -> bytes:
    return errors.anthropic_body(told)


def is_error(document: object) -> bool:
    return isinstance(document, dict) and document.get("type") == "error" and isinstance(document.get("error"), dict)


def stream_error(error: GatewayError) -> bytes:
    return sse.frame(error_body(errors.Told(error.status, str(error), error.code, error.param)), "error")


def models_body(names: Sequence[str]) -> bytes:
    data = [
        {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
        for name in names
    ]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return orjson.dumps({"data": data, "has_more": False, **ends})


def look(body: bytes) -> Observed:
    """What a whole answer says of itself. Raises Malformed."""
    document = document_of(body)
    seen = Seen()
    if document.get("type") == "error" or document.get("error"):
        seen.error = openai_tap.error_text(document)
    seen.usage = counts.part(document, "usage") or None
    if seen.usage is not None:
        seen.tier, seen.region = anthropic_usage.tier(seen.usage), anthropic_usage.region(seen.usage)
    seen.model, seen.response_id = document.get("model"), document.get("id")
    seen.diagnosis = anthropic_usage.diagnosis(document)
    if reason := document.get("stop_reason"):
        seen.finish = anthropic_tap.STOP.get(reason, "stop")
    return seen.observed(usage)
