from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import sse


def pieces(*chunks: bytes) -> list[bytes]:
    split = sse.Splitter()
    found = [piece for chunk in chunks for piece in split.feed(chunk)]
    return [*found, rest] if (rest := split.rest()) else found


@pytest.mark.parametrize(("raw", "event", "data"), [
    pytest.param(b"data: {}\n\n", None, b"{}", id="the usual"),
    pytest.param(b"data:{}\r\n\r\n", None, b"{}", id="CRLF and no space"),
    pytest.param(b"data: {}\r\r", None, b"{}", id="CR"),
    pytest.param(b"event: a\ndata: {}\n\n", "a", b"{}", id="a name"),
    pytest.param(b"data: {\ndata: }\n\n", None, b"{\n}", id="two data lines"),
    pytest.param(b"data: {}\n: between data and blank line\n\n", None, b"{}", id="a comment inside"),
    pytest.param(b"id: 3\nretry: 5\ndata:  x\n\n", None, b" x", id="only one space goes"),
    pytest.param(b"data: {}", None, b"{}", id="no line end at all"),
    pytest.param(b"\xef\xbb\xbfdata: {}\n\n", None, b"{}", id="a byte order mark"),
])
def test_frames_are_read_as_the_standard_says(raw: bytes, event: str | None, data: bytes) -> None:
    """Line ends, spaces, names and comments make no difference to the data."""
    frame = sse.parse(raw)
    assert frame is not None
    assert (frame.event, frame.data, frame.raw) == (event, data, raw)


@pytest.mark.parametrize("raw", [b": hi\n", b"\n", b"event: ping\n\n", b"data:\n\n", b"data: \n\n", b"data: :\n\n", b"id: 5\n\n"])
def test_keep_alives_are_no_events(raw: bytes) -> None:
    """Comments, names without data, empty data and a lone colon are not handed on as events."""
    assert sse.parse(raw) is None


STREAM = "data: {\"a\": \"ü🚀\"}\n\n: c\n\nevent: x\r\ndata: 1\r\n\r\ndata: 2\r\rid: 4\ndata: 3\ndata: 3\n\n:\ndata: last".encode()


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_cuts_change_no_frame(cuts: set[int]) -> None:
    """Wherever the network cuts, every frame comes out once and whole, and the bytes are the same."""
    edges = [0, *sorted(cuts), len(STREAM)]
    found = pieces(*(STREAM[a:b] for a, b in itertools.pairwise(edges)))
    assert b"".join(found) == STREAM
    frames = [frame.data for piece in found if (frame := sse.parse(piece)) is not None]
    assert frames == ["{\"a\": \"ü🚀\"}".encode(), b"1", b"2", b"3\n3", b"last"]


def test_a_comment_does_not_wait_for_the_next_event() -> None:
    """A keep-alive of one line is handed out at once, without a blank line."""
    split = sse.Splitter()
    assert split.feed(b": still here\n") == [b": still here\n"]
    assert split.feed(b"data: {") == []
    assert split.feed(b"}\n\n") == [b"data: {}\n\n"]


@pytest.mark.parametrize("size", [4096, sse.MAX_FRAME + 100])
def test_an_endless_event_is_malformed(size: int) -> None:
    """Memory stays bounded: a frame over 1 MiB is refused, however it arrives."""
    chunks = [b"x" * size] * (sse.MAX_FRAME // size + 2)
    with pytest.raises(sse.Malformed):
        pieces(*chunks)


def test_frame_writes_what_parse_reads() -> None:
    """Our own events are read back as they were meant."""
    parsed = sse.parse(sse.frame(b"{}", "error"))
    assert parsed is not None
    assert (parsed.event, parsed.data) == ("error", b"{}")
