"""Streams that the gateway ends itself: cut after any frame, what the client got is a whole answer of its dialect."""
from __future__ import annotations

from pathlib import Path

import pytest

from gateway import dialects
from gateway.core.call import Sketch
from gateway.core.events import Ended, Event, Finished, TextDelta
from gateway.dialects import DIALECTS, sse

WIRE = Path(__file__).parent.parent / "wire"
RECORDED = [(path.parent.name, path) for path in sorted(WIRE.glob("*/*.sse"))]


def cut_after(client: str, upstream: str, data: bytes) -> tuple[bytes, str]:
    relay = dialects.relay(client, upstream, Sketch(model="m", stream=True, spans={}), hide_usage=True)
    return relay.feed(data) + relay.cut(), relay.produced()


def events(dialect: str, answer: bytes) -> list[Event]:
    decode, split = DIALECTS[dialect].decoder(), sse.Splitter()
    pieces = [*split.feed(answer)]
    assert split.rest() == b""
    return [event for piece in pieces if (frame := sse.parse(piece)) is not None for event in decode(frame)]


@pytest.mark.parametrize(("upstream", "path"), RECORDED, ids=lambda value: getattr(value, "stem", value))
@pytest.mark.parametrize("translated", [False, True])
def test_a_cut_is_an_end_by_length(upstream: str, path: Path, translated: bool) -> None:
    """A reader of the dialect sees all the text, the reason and the end, once."""
    client = upstream if not translated else "anthropic_messages" if upstream != "anthropic_messages" else "openai_chat"
    frames = [frame + b"\n\n" for frame in path.read_bytes().replace(b"\r\n", b"\n").strip().split(b"\n\n")]
    tried = 0
    for count in range(1, len(frames)):
        answer, text = cut_after(client, upstream, b"".join(frames[:count]))
        found = events(client, answer)
        reasons = [event.reason for event in found if isinstance(event, Finished)]
        if not text or reasons[:1] != ["length"]:  # nothing had come, or it was over already
            continue
        tried += 1
        assert reasons == ["length"]
        assert sum(isinstance(event, Ended) for event in found) == 1
        assert "".join(event.text for event in found if isinstance(event, TextDelta)) in text
    assert tried


def test_anthropic_closes_the_block_that_is_open() -> None:
    """Blocks stand in each other's way otherwise."""
    start = b'event: content_block_start\ndata: {"type":"content_block_start","index":3,"content_block":{"type":"text","text":"a"}}\n\n'
    answer, _ = cut_after("anthropic_messages", "anthropic_messages", start)
    kinds = [frame.event for piece in sse.Splitter().feed(answer) if (frame := sse.parse(piece)) is not None]
    assert kinds == ["content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert b'"index":3' in answer.partition(b"content_block_stop")[2]
