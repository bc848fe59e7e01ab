"""Event-stream framing: bytes in, whole pieces out, each piece exactly the bytes that came.

A piece is a frame (up to and with its blank line), or a comment line or blank line that stands between frames: these are
handed out at once, so that a keep-alive never waits for the next event. Where the network cut the stream makes no
difference to the pieces, but for one: a CR at the end of a read ends its piece, and the LF that may follow is a piece
of its own (waiting for it would hold back the last event of a stream whose lines end in CR).
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.core.errors import UpstreamError

MAX_FRAME = 1 << 20
_LINE_END = re.compile(rb"(?>\r\n|\n|\r)")
_FRAME_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_BETWEEN = b":\r\n"
_BOM = b"\xef\xbb\xbf"


class Malformed(UpstreamError):
    """The backend sent something that is not its own dialect."""

    code = "upstream_malformed"
    retry = False


ODD = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
"""What reading a document raises whose fields are of other types than its dialect says; where backends are read, it is
`Malformed`, for a field's type is theirs to get right."""


def odd_shape() -> Malformed:
    return Malformed("The backend's answer has a field of a type that its dialect does not know.")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event; `raw` is what was received, `data` its data lines joined."""

    raw: bytes
    event: str | None
    data: bytes


class Splitter:
    """Cuts a stream into pieces. Raises Malformed on a frame over 1 MiB; the rest of that stream cannot be read."""

    __slots__ = ("_buffer", "_searched")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        if not self._buffer and 13 not in chunk and chunk[-2:] == b"\n\n" and len(chunk) <= MAX_FRAME:
            last = len(chunk) - 2
            if chunk[0] not in _BETWEEN and (chunk.find(10) == last or chunk.find(b"\n\n") == last):
                return [chunk]    # the usual case: one whole frame
            pieces = [part + b"\n\n" for part in chunk[:-2].split(b"\n\n")]
            if not any(piece[0] in _BETWEEN for piece in pieces):
                return pieces
        self._buffer += chunk
        return self._pieces()

    def rest(self) -> bytes:
        """What is left at the end of the stream: a last frame without its blank line, or b""."""
        left, self._buffer, self._searched = bytes(self._buffer), bytearray(), 0
        return left

    def _pieces(self) -> list[bytes]:
        buffer, start, pieces = self._buffer, 0, []
        while start < len(buffer):
            pattern = _LINE_END if buffer[start] in _BETWEEN else _FRAME_END
            found = pattern.search(buffer, max(start, self._searched))
            if found is None:
                break
            self._check(found.end() - start)
            pieces.append(bytes(buffer[start:found.end()]))
            start = self._searched = found.end()
        del buffer[:start]
        self._check(len(buffer))
        self._searched = max(0, len(buffer) - 3)    # a line end of the blank line may have come already
        return pieces

    @staticmethod
    def _check(size: int) -> None:
        if size > MAX_FRAME:
            raise Malformed("The backend sent an event larger than 1 MiB.")


def parse(raw: bytes) -> Frame | None:
    """The event in a piece, or None for what is only a keep-alive: comments, no data, empty data, a lone colon."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and raw.endswith(b"\n\n"):
        data = raw[6:-2]
        return Frame(raw, None, data) if data.strip() not in (b"", b":") else None
    event, lines = None, []
    for line in raw.removeprefix(_BOM).splitlines():
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"event":
            event = value.decode("utf-8", "replace")
    data = b"\n".join(lines)
    return Frame(raw, event, data) if data.strip() not in (b"", b":") else None


def frame(data: bytes, event: str | None = None) -> bytes:
    """One event as bytes; `data` is one line (compact JSON)."""
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
