from __future__ import annotations

import pytest

from gateway.dialects import anthropic_tap
from gateway.dialects.anthropic_usage import usage
from gateway.dialects.watch import Verdict

DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n'


@pytest.mark.parametrize(("raw", "verdict", "plain"), [
    (DELTA, Verdict.PASS, True),
    (b'data: {"type":"content_block_delta","delta":{"text":"a"}}\n\n', Verdict.PASS, False),
    (b'event: ping\ndata: {"type": "ping"}\n\n', Verdict.PING, False),
    (b"event: message_stop\ndata: {}\n\n", Verdict.END, False),
    (b'event: message_stop\ndata: {"type":"message_stop"}\n\n', Verdict.END, False),
    (b'event: error\ndata: {"type":"error","error":{"message":"x"}}\n\n', Verdict.ERROR, False),
    (b"event: ping\n\n", Verdict.IDLE, False),
    (b'event: something_new\ndata: {"type":"something_new"}\n\n', Verdict.PASS, False),
])
def test_what_a_frame_is(raw: bytes, verdict: Verdict, plain: bool) -> None:
    """Deltas are known by their event's name, all else is read; unknown events pass."""
    tap = anthropic_tap.Tap()
    assert not tap.plain(raw)
    tap.seen.started = True
    assert tap.plain(raw) is plain
    assert tap.look(raw) is verdict
    assert tap.hidden(raw) is raw


def test_a_delta_that_is_no_json_is_not_plain() -> None:
    """The slow look then says what is wrong."""
    tap = anthropic_tap.Tap()
    tap.seen.started = True
    assert not tap.plain(b"event: content_block_delta\ndata: {no\n\n")


def test_the_first_output_count_is_a_placeholder() -> None:
    """Until a delta brings the real one, the count is marked; null members overwrite nothing."""
    tap = anthropic_tap.Tap()
    tap.look(b'data: {"type":"message_start","message":{"id":"x","model":"m","usage":{"input_tokens":25,"output_tokens":1}}}\n\n')
    seen = tap.seen.observed(usage).usage
    assert seen is not None
    assert (seen.uncached, seen.output, seen.flags) == (25, 1, ("output_provisional",))
    tap.look(b'data: {"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":null,"cache_read_input_tokens":9,"output_tokens":12}}\n\n')
    seen = tap.seen.observed(usage).usage
    assert seen is not None
    assert (seen.uncached, seen.cache_read, seen.output, seen.flags) == (25, 9, 12, ())
    assert not tap.seen.complete
