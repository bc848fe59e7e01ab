"""A backend's stream on its way to a client: what may go out now, what is held back, what was seen.

Whole frames are relayed as they complete (half a frame is of no use to a client, and after a cut it would spoil the
error event that follows). Three things are held back: everything before the first real event, so that a stream that
begins with an error can still be tried elsewhere; the end marker, so that the ledger is written first; and whatever
comes behind it. Frames without data that a client library would take for an empty event become comments.
"""
from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from gateway.core.errors import GatewayError
from gateway.core.outcome import Observed
from gateway.dialects.cut import final
from gateway.dialects.sse import ODD, Malformed, Splitter, odd_shape
from gateway.dialects.watch import Kept, Seen, Tap, Usage, Verdict

_COMMENT = b":\n"


class StreamRelay(Protocol):
    """One stream. After an exception only `fail`, `produced` and what was observed are of use."""

    @property
    def observed(self) -> Observed: ...

    @property
    def started(self) -> bool:
        """A first token was seen."""
        ...

    @property
    def ended(self) -> bool:
        """The end marker or an error event was seen: reading on gives the client nothing more."""
        ...

    @property
    def complete(self) -> bool:
        """The answer is whole: a finish reason or the end marker was seen, and no error."""
        ...

    def feed(self, chunk: bytes) -> bytes:
        """What may go to the client now. Raises Malformed."""
        ...

    def finish(self) -> bytes:
        """At the end of the upstream's stream, or once `ended`: the rest, end marker and all. Empty unless `complete`."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """What was not given out yet, then the error as the client's dialect tells it in a stream; no end marker."""
        ...

    def cut(self) -> bytes:
        """What was not given out yet, then a proper end that says that the output limit is reached."""
        ...

    def produced(self) -> str:
        """The text and tool arguments produced so far."""
        ...


class ClientSide(Protocol):
    """What a relay needs of the client's dialect."""

    NAME: str
    END: bytes

    def stream_error(self, error: GatewayError) -> bytes: ...


class Road:
    """What both roads share: holding back until the stream is open, and how it may end."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._split = Splitter()
        self._out: list[bytes] = []
        self._open = False
        self._told = False
        self.seen = Seen()

    @property
    def started(self) -> bool:
        return self.seen.started

    @property
    def ended(self) -> bool:
        return self.seen.ended or self.seen.error is not None

    @property
    def complete(self) -> bool:
        return self.seen.error is None and (self.seen.ended or self.seen.complete)

    def _take(self, piece: bytes) -> None:
        try:
            self._read(piece)
        except ODD as error:
            raise odd_shape() from error

    def _read(self, piece: bytes) -> None:
        """One piece that is not of the usual kind."""
        raise NotImplementedError

    def finish(self) -> bytes:
        try:
            return self._finish()
        except ODD as error:
            raise odd_shape() from error

    def _finish(self) -> bytes:
        raise NotImplementedError

    def fail(self, error: GatewayError) -> bytes:
        """Nothing more where the client has been told of an error already."""
        if self._told:
            return b""
        self._told = True
        return self._flush() + self._client.stream_error(error)

    def _flush(self) -> bytes:
        if not self._open or not self._out:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        return out


class Direct(Road):
    """Same dialect on both sides: bytes pass as they came, a tap looks on."""

    def __init__(self, client: ClientSide, tap: Tap, usage: Usage, kept: Kept, *, hide_usage: bool) -> None:
        super().__init__(client)
        self.seen = tap.seen
        self._tap, self._usage, self._kept, self._hide = tap, usage, kept, hide_usage
        self._held = b""
        self._ids = False
        self._last, self._last_passed = b"", True
        self._event = b""

    @property
    def observed(self) -> Observed:
        return self.seen.observed(self._usage)

    def feed(self, chunk: bytes) -> bytes:
        pieces, seen = self._split.feed(chunk), self.seen
        if len(pieces) == 1 and self._open and not seen.ended and seen.error is None and self._tap.plain(pieces[0]):
            piece = self._last = self._event = pieces[0]    # the usual case, and by far
            self._last_passed = True
            self._kept.add(piece)
            return piece
        for piece in pieces:
            if self._open and not self.ended and self._tap.plain(piece):
                self._kept.add(piece)
                self._out.append(piece)
                self._last, self._last_passed, self._event = piece, True, piece
            else:
                self._take(piece)
        return self._flush()

    def _finish(self) -> bytes:
        rest = self._split.rest()
        if rest.strip() and not self.ended:
            with suppress(Malformed):    # cut inside its last frame: nobody can use that
                self._take(rest + (b"\n" if rest.endswith((b"\n", b"\r")) else b"\n\n"))
        if not self.complete:
            return b""
        self._open = True
        self._out.append(self._held or self._client.END)
        return self._flush()

    def cut(self) -> bytes:
        return self._flush() + final(self._client.NAME, self._event, self.seen, self._kept.text())

    def produced(self) -> str:
        return self._kept.text()

    def _read(self, piece: bytes) -> None:
        if self.seen.error is not None:
            return
        if piece == b"\n" and self._last.endswith(b"\r"):    # the second half of a line end that was cut in two
            if self._last is self._held:
                self._held += piece
            elif self._last_passed:
                self._out.append(piece)
            self._last = piece
            return
        ended = self.seen.ended
        verdict = self._tap.look(piece)
        passed = self._verdict(verdict, piece, ended)
        self._last, self._last_passed = piece, passed

    def _verdict(self, verdict: Verdict, piece: bytes, ended: bool) -> bool:
        if verdict is Verdict.IDLE:
            piece = self._idle(piece)
        elif verdict is Verdict.END and not ended:
            self._held = piece
        elif verdict is Verdict.ERROR:
            self._told = self._open
        elif verdict is Verdict.HIDE and self._hide:
            piece = self._tap.hidden(piece)
        if ended or verdict is Verdict.END or not piece or (verdict is Verdict.ERROR and not self._open):
            return False
        if verdict in (Verdict.PASS, Verdict.HIDE):
            self._open, self._event = True, piece
            self._kept.add(piece)
            self._ids = self._ids or piece.startswith(b"id") or b"\nid" in piece or b"\rid" in piece
        self._out.append(piece)
        return True

    def _idle(self, piece: bytes) -> bytes:
        """A keep-alive as a client library can bear it: no blank line after an id was seen, no event without data."""
        if piece[0] in b"\r\n":
            return b"" if self._ids else piece
        return piece if piece[0] in b":" else _COMMENT
