"""What is noted of an answer as it goes by, whichever road it takes."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import orjson
from msgspec.structs import replace

from gateway.core.events import FinishReason
from gateway.core.outcome import Diagnosis, Observed
from gateway.core.usage import TokenUsage
from gateway.dialects import counts
from gateway.dialects.sse import ODD, Malformed

Usage = Callable[[Mapping[str, Any]], TokenUsage]
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.S
)
"""A whole pair, half of one, or any other escape."""
_KEPT_MOST, _AT_ONCE = 1 << 20, 1 << 16


class Verdict(Enum):
    """What a piece of a stream is to the one who relays it."""

    PASS = auto()
    IDLE = auto()     # a keep-alive: no event
    PING = auto()     # a keep-alive that is an event of the dialect
    HIDE = auto()     # a usage chunk that the client may not have asked for
    END = auto()      # the end marker
    ERROR = auto()    # an error that came inside the stream


@dataclass(slots=True)
class Seen:
    """The notes themselves; `observed` makes them a value. `usage` holds the provider's raw counters, merged."""

    usage: Mapping[str, Any] | None = None
    tokens: TokenUsage | None = None
    """Counts that a decoder has made already; used where there are no raw ones."""
    provisional: bool = False
    """The output count is a placeholder yet (Anthropic's first event)."""
    model: str | None = None
    tier: str | None = None
    response_id: str | None = None
    region: str | None = None
    diagnosis: Diagnosis | None = None
    finish: FinishReason | None = None
    error: str | None = None
    started: bool = False
    ended: bool = False
    choices: int = 1
    """How many answers were asked for, as far as it shows; all must finish."""
    finished: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return len(self.finished) >= self.choices

    def observed(self, usage: Usage) -> Observed:
        try:
            tokens = self.tokens if self.usage is None else usage(self.usage)
        except ODD:
            tokens = None
        if tokens is not None and self.provisional:
            tokens = replace(tokens, flags=(*tokens.flags, "output_provisional"))
        return Observed(
            usage=tokens, served_model=counts.name(self.model), served_tier=counts.name(self.tier), finish_reason=self.finish,
            response_id=counts.name(self.response_id), region=counts.name(self.region), diagnosis=self.diagnosis,
            error=self.error,
        )


class Tap(Protocol):
    """A dialect's eye on its own stream: notes what it sees in `seen`. Raises Malformed on an event that is not JSON."""

    seen: Seen

    def look(self, piece: bytes) -> Verdict: ...

    def plain(self, piece: bytes) -> bool:
        """Whether this is, for sure and at a glance, a frame to pass on with nothing to note."""
        ...

    def hidden(self, piece: bytes) -> bytes:
        """The frame as a client sees it that did not ask for usage; b"" for none at all."""
        ...


class Kept:
    """The raw frames that went by, turned into text only when asked, or in small bites once there is 1 MiB of them."""

    __slots__ = ("_pieces", "_read", "_size", "_texts")

    def __init__(self, read: Callable[[bytes], Iterable[str]]) -> None:
        self._read = read
        self._pieces: list[bytes] = []
        self._size = 0
        self._texts: list[str] = []

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _KEPT_MOST:
            self._digest(_AT_ONCE)

    def text(self) -> str:
        self._digest(self._size)
        return "".join(self._texts)

    def _digest(self, size: int) -> None:
        used = done = 0
        for piece in self._pieces:
            if done >= size:
                break
            with suppress(*ODD):
                self._texts += [text for text in self._read(piece) if isinstance(text, str)]
            used, done = used + 1, done + len(piece)
        del self._pieces[:used]
        self._size -= done


def document_of(body: bytes) -> dict[str, Any]:
    """A whole answer, decoded. Raises Malformed."""
    try:
        document = loads(body)
    except orjson.JSONDecodeError:
        raise Malformed("The backend's answer is not JSON.") from None
    if not isinstance(document, dict):
        raise Malformed("The backend's answer is not a JSON object.")
    return document


def loads(data: bytes) -> Any:
    """JSON of a backend's. Half a character in it, which backends send that cut a text between two UTF-16 units, is replaced.

    Raises `orjson.JSONDecodeError`.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if not _ESCAPES.search(data):
            raise
        return orjson.loads(_ESCAPES.sub(lambda found: rb"\ufffd" if found[1] else found[0], data))
