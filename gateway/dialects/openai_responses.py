"""OpenAI responses, as callers send them to us and as we send them to backends that speak them.

Usage comes unasked, in the last event only, and that event is the end: there is no `[DONE]`. Whatever refers to what the
provider has stored (`previous_response_id`, background) can only be served by the backend that stored it.
"""
from __future__ import annotations

from collections.abc import Sequence

import orjson
from msgspec.structs import replace

from gateway.core.call import Sketch
from gateway.core.errors import GatewayError
from gateway.core.outcome import Observed
from gateway.core.part import Part
from gateway.dialects import errors, facts, splice, sse
from gateway.dialects.openai_chat import PING as PING
from gateway.dialects.openai_chat import error_body as error_body
from gateway.dialects.openai_chat import is_error as is_error
from gateway.dialects.openai_chat import models_body as models_body
from gateway.dialects.openai_usage import usage as usage
from gateway.dialects.responses_answer import decoder as decoder
from gateway.dialects.responses_answer import events as events
from gateway.dialects.responses_answer import render_answer as render_answer
from gateway.dialects.responses_encoder import Encoder as Encoder
from gateway.dialects.responses_request import parse_request as parse_request
from gateway.dialects.responses_request import render_request as render_request
from gateway.dialects.responses_tap import Tap as Tap
from gateway.dialects.responses_tap import note
from gateway.dialects.responses_tap import read_frame as read_frame
from gateway.dialects.watch import Seen, document_of

NAME, PATH = "openai_responses", "/v1/responses"
END = b""
PROMPT_FIELDS: tuple[str, ...] = ("tools", "instructions", "input")


def sketch(body: bytes, places: splice.Spans, parts: Sequence[Part], usual: facts.Usual | None = None) -> Sketch:
    if usual is not None:
        return Sketch(
            model=usual.model, stream=bool(usual.stream), spans=places, parts=parts, has_tools=bool(usual.tools),
            max_output_tokens=usual.max_output_tokens, service_tier=usual.service_tier,
            previous_id=usual.previous_response_id,
        )  # fmt: skip
    return Sketch(
        model=facts.required_text(body, places, "model"),
        stream=facts.flag(body, places, "stream"),
        spans=places,
        parts=parts,
        max_output_tokens=facts.count(body, places, "max_output_tokens"),
        service_tier=facts.text(body, places, "service_tier"),
        has_tools=facts.array(body, places, "tools"),
        previous_id=facts.text(body, places, "previous_response_id"),
    )


def usage_asked(body: bytes, places: splice.Spans) -> None:
    return None    # it comes unasked


def look(body: bytes) -> Observed:
    """What a whole answer says of itself. One whose status is `failed` is an answer all the same. Raises Malformed."""
    seen, document = Seen(), document_of(body)
    note(seen, document)
    if "object" not in document and is_error(document):
        seen.error = str(document["error"].get("message") or "The backend reported an error.")
    return replace(seen.observed(usage), pending=document.get("status") in ("queued", "in_progress"))


def stream_error(error: GatewayError) -> bytes:
    """As the provider sends it: an event of type `error` with the error object that SDKs raise from."""
    told = errors.Told(error.status, str(error), error.code, error.param)
    body = orjson.loads(errors.openai_body(told))
    event = {"type": "error", **body, "message": told.message, "code": told.code, "param": told.param, "sequence_number": 0}
    return sse.frame(orjson.dumps(event), "error")
