"""Usage read off an answer of an API that we do not model: which of the known shapes it has shows in the answer itself.

Answers come whole, as an event stream, as one JSON array in pieces (Google) or in Amazon's binary frames.
What cannot be read passes all the same and is not metered.
"""
from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Protocol

import orjson

from gateway.core.outcome import Observed
from gateway.core.usage import TokenUsage
from gateway.dialects import counts, usage_anthropic, usage_bedrock, usage_gemini, usage_openai
from gateway.dialects.sse import ODD, Malformed, Splitter, parse

MOST_BYTES = 64 * 1024 * 1024
_TIER_HEADER = "x-gemini-service-tier"
"""Google's word on what was served; the request's may not have been granted."""
_BINARY = "application/vnd.amazon.eventstream"
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""How a batch of OpenAI's ends; its object then has the usage of all its calls."""
_NONE_USED = {"input_tokens": 0, "output_tokens": 0}
"""By a batch whose file was refused."""
Raw = Mapping[str, Any]


class Shape(Protocol):
    """One provider's way to tell usage; a plain module satisfies it."""

    def find(self, document: Raw) -> Raw | None: ...

    def usage(self, raw: Raw) -> TokenUsage: ...

    def model(self, document: Raw) -> str | None: ...

    def tier(self, document: Raw) -> str | None: ...


SHAPES: tuple[Shape, ...] = (usage_gemini, usage_bedrock, usage_anthropic, usage_openai)
"""In the order in which they are asked; the first that finds its counters in a document has it."""


class Reader:
    """Fed an answer as it passes; `observed` is what it says."""

    def __init__(self, content_type: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        self._split = Splitter() if kind == "text/event-stream" else None
        self._binary = kind == _BINARY
        self._buffer = bytearray()
        self._blind = self._split is None and not self._binary and "json" not in kind and kind not in ("", "text/plain")
        self._shape: Shape | None = None
        self._raw: dict[str, Any] | None = None
        self._model: str | None = None
        self._tier: str | None = None
        self._told_tier = headers.get(_TIER_HEADER)
        self._id: str | None = None

    def feed(self, chunk: bytes) -> None:
        if self._blind:
            return
        with suppress(Malformed):
            if self._split is not None:
                for piece in self._split.feed(chunk):
                    self._piece(piece)
                return
            self._buffer += chunk
            self._blind = len(self._buffer) > MOST_BYTES
            if self._binary:
                for payload in _frames(self._buffer):
                    self._take(payload)
            return
        self._blind = True

    def finish(self) -> None:
        if self._split is not None:
            self._piece(self._split.rest())
        elif not self._binary and not self._blind:
            self._take(bytes(self._buffer))

    @property
    def observed(self) -> Observed:
        usage = None
        with suppress(*ODD):
            usage = None if self._shape is None or self._raw is None else self._shape.usage(self._raw)
        region = None if self._raw is None else self._raw.get("inference_geo")
        tier = self._told_tier or self._tier
        return Observed(
            usage=usage, served_model=counts.name(self._model), served_tier=counts.name(tier),
            response_id=counts.name(self._id), region=counts.name(region) if region != "not_available" else None,
        )  # fmt: skip

    def _piece(self, piece: bytes) -> None:
        found = parse(piece)
        if found is not None:
            self._take(found.data)

    def _take(self, text: bytes) -> None:
        with suppress(*ODD):  # no JSON, or of a shape that is nobody's
            value = orjson.loads(text)
            for document in value if isinstance(value, list) else (value,):
                if isinstance(document, dict):
                    self._look(document)

    def _look(self, document: Raw) -> None:
        name = document.get("id") or counts.part(document, "response").get("id")
        self._id = name if isinstance(name, str) else self._id
        if document.get("object") == "batch":
            if document.get("status") not in _ENDED:  # what it counts is not all yet
                return
            if document["status"] == "failed" and not document.get("usage"):
                document = {**document, "usage": _NONE_USED}
        for shape in SHAPES:
            raw = shape.find(document)
            self._model = shape.model(document) or self._model
            self._tier = shape.tier(document) or self._tier
            if raw is not None:
                self._shape, self._raw = shape, counts.merge(self._raw if shape is self._shape else None, raw)
                return


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Payloads of the whole frames at the start of the buffer, which are taken out of it."""
    while len(buffer) >= 16:
        size, headers = struct.unpack_from(">II", buffer)
        if size < 16 or headers > size - 16:
            raise Malformed("The backend sent a frame that is none.")
        if len(buffer) < size:
            return
        yield bytes(buffer[12 + headers:size - 4])
        del buffer[:size]
