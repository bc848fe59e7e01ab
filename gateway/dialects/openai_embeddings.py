"""OpenAI embeddings: relayed to backends that speak them, never translated, never streamed.

Nothing is set that the client left out: an encoding that is forced on a backend changes what comes back. An answer may be
megabytes of numbers, so only its few other members are decoded. What the table wants for streams is chat's, and unused.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.call import Sketch
from gateway.core.errors import BadRequest
from gateway.core.events import Event
from gateway.core.outcome import Observed
from gateway.core.part import Part
from gateway.core.prompt import Json, Prompt
from gateway.dialects import facts, splice
from gateway.dialects.openai_chat import END as END
from gateway.dialects.openai_chat import PING as PING
from gateway.dialects.openai_chat import Encoder as Encoder
from gateway.dialects.openai_chat import Tap as Tap
from gateway.dialects.openai_chat import decoder as decoder
from gateway.dialects.openai_chat import error_body as error_body
from gateway.dialects.openai_chat import is_error as is_error
from gateway.dialects.openai_chat import models_body as models_body
from gateway.dialects.openai_chat import read_frame as read_frame
from gateway.dialects.openai_chat import render_answer as render_answer
from gateway.dialects.openai_chat import stream_error as stream_error
from gateway.dialects.openai_tap import error_text
from gateway.dialects.openai_usage import usage as usage
from gateway.dialects.sse import Malformed
from gateway.dialects.watch import Seen

NAME, PATH = "openai_embeddings", "/v1/embeddings"
PROMPT_FIELDS: tuple[str, ...] = ("input",)


class _Answer(msgspec.Struct, gc=False):
    model: Any = None
    usage: Any = None
    error: Any = None


_glance = msgspec.json.Decoder(_Answer).decode


def sketch(body: bytes, places: splice.Spans, parts: Sequence[Part], usual: facts.Usual | None = None) -> Sketch:
    model = facts.required_text(body, places, "model")
    if "input" not in places:
        raise facts.MissingField("input is required.", param="input")
    return Sketch(model=model, stream=False, spans=places, parts=parts, max_output_tokens=0)


def usage_asked(body: bytes, places: splice.Spans) -> None:
    return None    # it comes unasked


def look(body: bytes) -> Observed:
    """What a whole answer says of itself. Raises Malformed."""
    try:
        answer = _glance(body)
    except msgspec.MsgspecError:
        raise Malformed("The backend's answer is not a JSON object.") from None
    seen = Seen(finish="stop")
    if answer.error:
        seen.error = error_text({"error": answer.error})
    seen.usage = answer.usage if isinstance(answer.usage, dict) else None
    seen.model = answer.model if isinstance(answer.model, str) else None
    return seen.observed(usage)


def parse_request(body: bytes) -> Prompt:
    raise BadRequest("Embeddings are only served by backends that speak them.")


def render_request(prompt: Prompt) -> dict[str, Json]:
    raise BadRequest("Embeddings are only served by backends that speak them.")


def events(document: Mapping[str, Any]) -> list[Event]:
    return []    # vectors hold no words
