"""Wire formats: bytes to core values and back, both ways, no I/O. The functions here are all that the pipeline uses.

    read        what the hot path needs to know of a body         request     the body as the backend gets it
    relay       a stream on its way to the client                 answer      a whole answer on its way to the client

Where the client's dialect is the backend's, bytes travel: a request is only spliced, an answer only looked at. Else a
request goes body -> Prompt -> body and an answer goes bytes -> events -> bytes; what the other side cannot express is a
BadRequest that names the field.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import orjson

from gateway.core.call import Sketch
from gateway.core.errors import GatewayError
from gateway.core.events import Event
from gateway.core.outcome import Observed
from gateway.core.part import Part
from gateway.core.prompt import Json, Prompt
from gateway.core.usage import TokenUsage
from gateway.dialects import (
    anthropic_messages,
    errors,
    facts,
    openai_chat,
    openai_embeddings,
    openai_request,
    openai_responses,
    splice,
    text,
)
from gateway.dialects import parts as prompt_parts
from gateway.dialects.facts import FORBIDDEN
from gateway.dialects.relay import Direct, StreamRelay
from gateway.dialects.sse import ODD, Malformed, odd_shape
from gateway.dialects.translate import Decode, Encode, Translated, translated_answer, translated_request, words_of
from gateway.dialects.watch import Kept, Tap

__all__ = ["DIALECTS", "TRANSLATED", "Dialect", "Malformed", "Part", "StreamRelay"]


class Dialect(Protocol):
    """A wire format; a plain module satisfies it."""

    NAME: str
    PATH: str
    PING: bytes
    """What may be sent at any time between events to keep a connection alive."""
    END: bytes
    """The end marker of a stream."""
    PROMPT_FIELDS: tuple[str, ...]
    """The top-level fields that make up the prompt, in the order in which the provider renders them."""

    # requests
    def sketch(self, body: bytes, places: splice.Spans, parts: Sequence[Part], usual: facts.Usual | None = None) -> Sketch: ...
    def usage_asked(self, body: bytes, places: splice.Spans) -> bytes | None: ...
    def parse_request(self, body: bytes) -> Prompt: ...
    def render_request(self, prompt: Prompt) -> dict[str, Json]: ...

    # answers
    def usage(self, raw: Mapping[str, Any]) -> TokenUsage: ...
    def look(self, body: bytes) -> Observed: ...
    def Tap(self) -> Tap: ...
    def read_frame(self, piece: bytes) -> Iterator[str]: ...
    def decoder(self) -> Decode: ...
    def Encoder(self, *, wants_usage: bool) -> Encode: ...
    def events(self, document: Mapping[str, Any]) -> Sequence[Event]: ...
    def render_answer(self, found: Sequence[Event]) -> bytes: ...

    # errors and lists
    def is_error(self, document: object) -> bool: ...
    def error_body(self, told: errors.Told) -> bytes: ...
    def stream_error(self, error: GatewayError) -> bytes: ...
    def models_body(self, names: Sequence[str]) -> bytes: ...


DIALECTS: dict[str, Dialect] = {
    openai_chat.NAME: openai_chat,
    openai_responses.NAME: openai_responses,
    anthropic_messages.NAME: anthropic_messages,
    openai_embeddings.NAME: openai_embeddings,
}
"""By name, as `Call.dialect` and a backend's `dialect:` say it."""
PREFIX_SETTINGS: Mapping[str, tuple[str, ...]] = {
    openai_chat.NAME: ("response_format", "parallel_tool_calls", "reasoning_effort", "verbosity"),
    openai_responses.NAME: ("text", "parallel_tool_calls", "reasoning"),
    anthropic_messages.NAME: ("output_config", "output_format"),
}
"""Fields beside the prompt that a provider's cache counts as its beginning (provider-caching, 4.1 and 6.2)."""
_ORDER = {name: (*PREFIX_SETTINGS.get(name, ()), *spoken.PROMPT_FIELDS) for name, spoken in DIALECTS.items()}
TRANSLATED = (openai_chat.NAME, openai_responses.NAME, anthropic_messages.NAME)
"""Those that can be translated to each other, the one that is tried first in front."""
_FORBIDDEN = frozenset(FORBIDDEN)
PING: Mapping[str, bytes] = {name: dialect.PING for name, dialect in DIALECTS.items()}


def read(dialect: str, body: bytes, domain: str = "") -> Sketch:
    """`domain`: of isolation; what was read in another makes this no quicker.

    Raises BadRequest: not JSON, too deep, a key twice, a field missing or of the wrong type (`param` names it).
    """
    found = prompt_parts.read(body, _ORDER[dialect], domain)
    return DIALECTS[dialect].sketch(body, found.places, found.parts, facts.usual(found.values))


def request(
    client: str, upstream: str, body: bytes, sketch: Sketch, *, model: str, set_fields: Mapping[str, Json], ask_usage: bool
) -> bytes:
    """The body for the backend. `set_fields` are in the backend's words; None takes a field out. `sketch` must be of `body`."""
    if client != upstream:
        return translated_request(DIALECTS[client], DIALECTS[upstream], body, model, set_fields)
    asks = ask_usage and sketch.stream and not sketch.wants_usage
    if not (set_fields or asks) and model == sketch.model and _FORBIDDEN.isdisjoint(sketch.spans):
        return body
    fields = {name: msgspec.json.encode(value) for name, value in set_fields.items() if value is not None}
    if model != sketch.model:
        fields["model"] = msgspec.json.encode(model)
    if asks:
        asked = DIALECTS[client].usage_asked(body, sketch.spans)
        if asked is not None:
            fields["stream_options"] = asked
    gone = [*FORBIDDEN, *(name for name, value in set_fields.items() if value is None)]
    return splice.change(body, sketch.spans, fields, gone)


def limit_field(upstream: str, model: str) -> str:
    """The field of a backend's request that says how many tokens may be generated."""
    if upstream == openai_chat.NAME:
        return openai_request.limit_field(model)
    return "max_output_tokens" if upstream == openai_responses.NAME else "max_tokens"


def relay(client: str, upstream: str, sketch: Sketch, *, hide_usage: bool) -> StreamRelay:
    """The road of one stream. `hide_usage`: the client did not ask for the usage that we asked for."""
    ours, theirs = DIALECTS[client], DIALECTS[upstream]
    if client == upstream:
        return Direct(ours, ours.Tap(), ours.usage, Kept(ours.read_frame), hide_usage=hide_usage)
    return Translated(ours, theirs.decoder(), ours.Encoder(wants_usage=not hide_usage))


def answer(client: str, upstream: str, body: bytes, sketch: Sketch) -> tuple[bytes, Observed]:
    """A whole answer: the same bytes within a dialect, else translated; b"" where `observed.error` is set. Raises Malformed."""
    ours, theirs = DIALECTS[client], DIALECTS[upstream]
    try:
        return (body, theirs.look(body)) if client == upstream else translated_answer(ours, theirs, body)
    except ODD as error:
        raise odd_shape() from error


def answer_text(upstream: str, body: bytes) -> str:
    """All that a whole answer says, for an estimate where its usage is missing. `body` has been read by `answer` before."""
    try:
        return "".join([text for event in DIALECTS[upstream].events(orjson.loads(body)) for text in words_of(event)])
    except ODD:
        return ""


def upstream_error(client: str, upstream: str, status: int, body: bytes) -> bytes:
    """A backend's error as the client's dialect tells it: as it is if it has that shape already, else with its message kept."""
    if client == upstream:
        try:
            document = orjson.loads(body)
            if DIALECTS[client].is_error(document) and isinstance(document["error"].get("message"), str):
                return body
        except orjson.JSONDecodeError:
            pass
    return DIALECTS[client].error_body(errors.from_backend(status, body))


def render_error(dialect: str, error: GatewayError) -> bytes:
    return DIALECTS[dialect].error_body(errors.Told(error.status, str(error), error.code, error.param))


def models_body(dialect: str, names: Sequence[str]) -> bytes:
    return DIALECTS[dialect].models_body(names)


def order(dialect: str) -> Sequence[str]:
    """The top-level fields that a prefix cache sees, in rendered order."""
    return _ORDER[dialect]


def count_text(dialect: str, body: bytes, sketch: Sketch) -> Iterator[str]:
    """All text of the prompt, for an estimate of its tokens; decodes everything, so keep it off the hot path."""
    for name in DIALECTS[dialect].PROMPT_FIELDS:
        if name in sketch.spans:
            yield from text.pieces(name, body[slice(*sketch.spans[name])])
