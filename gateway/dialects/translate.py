"""The road between two dialects: body to Prompt to body, and an answer's bytes to events to bytes.

The end of a streamed answer (finish reason, usage, end marker) is written by the client's encoder in one go when the
upstream has ended, so it is held back as on the direct road, and usage that comes late still stands in its place.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from gateway.core.errors import BadRequest, GatewayError
from gateway.core.events import (
    Ended,
    Event,
    Failed,
    Finished,
    RefusalDelta,
    Started,
    TextDelta,
    ThinkingDelta,
    ToolDelta,
    ToolStart,
    Used,
)
from gateway.core.outcome import Observed
from gateway.core.prompt import Json, Prompt
from gateway.dialects.limits import TooDeep
from gateway.dialects.relay import ClientSide, Road
from gateway.dialects.sse import Frame, Malformed, parse
from gateway.dialects.watch import Seen, document_of

Decode = Callable[[Frame], Sequence[Event]]


class Encode(Protocol):
    """Events to the bytes of a stream; `end` gives the finish reason, the usage and the end marker."""

    def encode(self, event: Event) -> bytes: ...

    def end(self) -> bytes: ...


class Source(Protocol):
    """What translation needs of the client's dialect for a request, and of the backend's for an answer."""

    def parse_request(self, body: bytes) -> Prompt: ...

    def events(self, document: Mapping[str, Any]) -> Sequence[Event]: ...

    def is_error(self, document: object) -> bool: ...


class Target(Protocol):
    """What translation needs of the backend's dialect for a request, and of the client's for an answer."""

    def render_request(self, prompt: Prompt) -> dict[str, Json]: ...

    def render_answer(self, events: Sequence[Event]) -> bytes: ...


def translated_request(client: Source, upstream: Target, body: bytes, model: str, set_fields: Mapping[str, Json]) -> bytes:
    try:
        wire = upstream.render_request(replace(client.parse_request(body), model=model))
        wire.update(set_fields)
        wire = {name: value for name, value in wire.items() if name not in set_fields or value is not None}
        return msgspec.json.encode(wire)
    except RecursionError:
        raise TooDeep("The request body is nested too deeply.") from None
    except KeyError as error:
        raise BadRequest(f"The request cannot be read: the field {error} is missing somewhere.") from error
    except (TypeError, AttributeError) as error:
        raise BadRequest("The request cannot be read: a field has a value of the wrong type.") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadRequest(f"The request cannot be read: {error}") from error


def translated_answer(client: Target, upstream: Source, body: bytes) -> tuple[bytes, Observed]:
    document = document_of(body)
    events = upstream.events(document)
    seen = Seen()
    for event in events:
        note(seen, event)
    if seen.error is None and seen.finish is None and seen.tokens is None and not seen.started:
        raise Malformed("The backend's answer is none of its dialect.")
    return (b"" if seen.error is not None else client.render_answer(events)), seen.observed(_no_usage)


class Translated(Road):
    """Another dialect on each side: a decoder of the backend's, an encoder of the client's."""

    def __init__(self, client: ClientSide, decode: Decode, encoder: Encode) -> None:
        super().__init__(client)
        self._decode, self._encoder = decode, encoder
        self._texts: list[str] = []

    @property
    def observed(self) -> Observed:
        return self.seen.observed(_no_usage)

    def feed(self, chunk: bytes) -> bytes:
        for piece in self._split.feed(chunk):
            self._take(piece)
        return self._flush()

    def _finish(self) -> bytes:
        rest = self._split.rest()
        if rest.strip() and not self.ended:
            with suppress(Malformed):    # cut inside its last frame: nobody can use that
                self._take(rest)
        if not self.complete:
            return b""
        self._open = True
        self._out.append(self._encoder.end())
        return self._flush()

    def cut(self) -> bytes:
        return self._flush() + self._encoder.encode(Finished("length")) + self._encoder.end()

    def produced(self) -> str:
        return "".join([text for text in self._texts if isinstance(text, str)])

    def _read(self, piece: bytes) -> None:
        frame = parse(piece)
        if frame is None or self.seen.error is not None:
            return
        ended = self.seen.ended
        for event in self._decode(frame):
            if ended and not isinstance(event, Used):     # behind the end marker only counts are of use
                continue
            note(self.seen, event)
            if isinstance(event, Failed):
                if self._open:
                    self._out.append(self._client.stream_error(_Backend(event)))
                    self._told = True
                return
            if not isinstance(event, Ended):
                self._open = True
            self._texts += words_of(event)
            self._out.append(self._encoder.encode(event))


def note(seen: Seen, event: Event) -> None:
    """Keep what an event says of the answer as a whole."""
    match event:
        case Started(id=name, model=model):
            seen.response_id, seen.model = name, model
        case Used(usage=tokens, served_tier=tier, region=region):
            seen.tokens, seen.tier, seen.region = tokens, tier or seen.tier, region or seen.region
        case Finished(reason=reason):
            seen.finish = reason
            seen.finished.add(0)
        case Failed(message=message):
            seen.error = message
        case Ended():
            seen.ended = True
        case _:
            seen.started = True


class _Backend(GatewayError):
    """An error that a backend sent inside its stream, for the client."""

    status, code = 502, "upstream_error"

    def __init__(self, event: Failed) -> None:
        super().__init__(event.message)
        if event.code:
            self.code = event.code


def words_of(event: Event) -> tuple[str, ...]:
    """What was generated, for an estimate of its tokens."""
    match event:
        case TextDelta(text=text) | RefusalDelta(text=text) | ThinkingDelta(text=text):
            return (text,)
        case ToolStart(name=name):
            return (name,)
        case ToolDelta(arguments=arguments):
            return (arguments,)
    return ()


def _no_usage(raw: Mapping[str, Any]) -> Any:
    raise AssertionError("translated answers carry their counts in events")
