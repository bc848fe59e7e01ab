"""OpenAI chat completions, as callers send them to us and as we send them to backends.

The dialect has no ping of its own, so ours is a comment, and only one line of it: a blank line behind a comment makes a
popular client hand on an empty event. Usage comes in a stream only if `stream_options.include_usage` asks for it.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.core.call import Sketch
from gateway.core.errors import BadRequest, GatewayError
from gateway.core.outcome import Observed
from gateway.core.part import Part
from gateway.core.usage import TokenUsage
from gateway.dialects import counts, errors, facts, openai_tap, openai_usage, splice, sse
from gateway.dialects.openai_answer import Encoder as Encoder
from gateway.dialects.openai_answer import decoder as decoder
from gateway.dialects.openai_answer import events as events
from gateway.dialects.openai_answer import render_answer as render_answer
from gateway.dialects.openai_request import parse_request as parse_request
from gateway.dialects.openai_request import render_request as render_request
from gateway.dialects.openai_tap import Tap as Tap
from gateway.dialects.openai_tap import read_frame as read_frame
from gateway.dialects.openai_usage import usage as usage
from gateway.dialects.watch import document_of

NAME, PATH = "openai_chat", "/v1/chat/completions"
PING = b": keep-alive\n"
END = b"data: [DONE]\n\n"
PROMPT_FIELDS: tuple[str, ...] = ("tools", "messages")


def sketch(body: bytes, places: splice.Spans, parts: Sequence[Part], usual: facts.Usual | None = None) -> Sketch:
    if usual is not None and usual.messages is not None:
        stream, newer = bool(usual.stream), usual.max_completion_tokens
        return Sketch(
            model=usual.model, stream=stream, spans=places, parts=parts, service_tier=usual.service_tier,
            max_output_tokens=usual.max_tokens if newer is None else _limit(newer, usual.max_tokens),
            wants_usage=not stream or _wants_usage(body, places), has_tools=bool(usual.tools or usual.functions),
        )  # fmt: skip
    model = facts.required_text(body, places, "model")
    newer = facts.count(body, places, "max_completion_tokens")
    older = facts.count(body, places, "max_tokens")
    facts.array(body, places, "messages", required=True)
    stream = facts.flag(body, places, "stream")
    return Sketch(
        model=model,
        stream=stream,
        spans=places,
        parts=parts,
        max_output_tokens=older if newer is None else _limit(newer, older),
        service_tier=facts.text(body, places, "service_tier"),
        wants_usage=not stream or _wants_usage(body, places),
        has_tools=facts.array(body, places, "tools") or facts.array(body, places, "functions"),
    )


def usage_asked(body: bytes, places: splice.Spans) -> bytes:
    """The new value of `stream_options`: as it was, with usage asked for."""
    place = places.get("stream_options")
    if place is None or body[slice(*place)] == b"null":
        return b'{"include_usage":true}'
    options = body[slice(*place)]
    return splice.change(options, splice.spans(options, where="stream_options"), {"include_usage": b"true"})


def error_body(told: errors.Told) -> bytes:
    return errors.openai_body(told)


def is_error(document: object) -> bool:
    return isinstance(document, dict) and isinstance(document.get("error"), dict)


def stream_error(error: GatewayError) -> bytes:
    return sse.frame(error_body(errors.Told(error.status, str(error), error.code, error.param)))


def models_body(names: Sequence[str]) -> bytes:
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "tollway"} for name in names]
    return orjson.dumps({"object": "list", "data": data})


def _limit(newer: int, older: int | None) -> int:
    """Of both limits the larger: some backends go by the one, some by the other, and either must be paid for."""
    return newer if older is None else max(newer, older)


_ASKED = frozenset({b'{"include_usage":true}', b'{"include_usage": true}'})
"""As clients' libraries write it."""


def _wants_usage(body: bytes, places: splice.Spans) -> bool:
    place = places.get("stream_options")
    if place is None or (options := body[slice(*place)]) == b"null":
        return False
    if options in _ASKED:
        return True
    inner = splice.spans(body, *place, where="stream_options")
    try:
        return facts.flag(body, inner, "include_usage")
    except BadRequest:
        raise BadRequest("stream_options.include_usage must be true or false.", param="stream_options") from None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    usage: None = None


class _Answer(msgspec.Struct, gc=False):
    """A whole answer as nearly all are; what is said in it is skipped."""

    choices: list[_Choice]
    usage: dict[str, Any]
    id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    error: None = None


class _Usual(_Answer, gc=False):
    usage: openai_usage.Usual  # type: ignore[assignment]


_answer, _usual = msgspec.json.Decoder(_Answer).decode, msgspec.json.Decoder(_Usual).decode


def look(body: bytes) -> Observed:
    """What a whole answer says of itself. Raises Malformed."""
    try:
        found = _usual(body) if body.isascii() else None
    except msgspec.MsgspecError:
        found = None
    counted = None if found is None else openai_usage.usual(found.usage)
    if found is None or counted is None or found.service_tier == "auto":
        return _look_closer(body)
    return _observed(found, counted, found.service_tier)


def _look_closer(body: bytes) -> Observed:
    """The same where the usage may be of any shape."""
    try:
        found = _answer(body) if body.isascii() else None
    except msgspec.MsgspecError:
        found = None
    if found is None:
        return _look(body)
    tier = found.service_tier
    if tier == "auto" or "service_tier" in found.usage:
        tier = openai_tap.tier({"service_tier": tier}, found.usage)
    return _observed(found, usage(found.usage), tier)


def _observed(answer: _Answer | _Usual, counted: TokenUsage, tier: str | None) -> Observed:
    choices = answer.choices
    return Observed(
        usage=counted, served_model=counts.name(answer.model), served_tier=counts.name(tier),
        finish_reason=openai_tap.FINISH.get(choices[0].finish_reason or "", "stop") if choices else None,
        response_id=counts.name(answer.id),
    )  # fmt: skip


def _look(body: bytes) -> Observed:
    """The same of any answer."""
    document = document_of(body)
    raw = openai_usage.find(document)
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    return Observed(
        usage=None if raw is None else usage(raw),
        served_model=counts.name(document.get("model")),
        served_tier=counts.name(openai_tap.tier(document, raw)),
        finish_reason=None if first is None else openai_tap.FINISH.get(first.get("finish_reason") or "", "stop"),
        response_id=counts.name(document.get("id")),
        error=openai_tap.error_text(document) if document.get("error") else None,
    )
