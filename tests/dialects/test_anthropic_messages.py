from __future__ import annotations

import orjson
import pytest

from gateway import dialects
from gateway.dialects import anthropic_messages, sse


@pytest.mark.parametrize(("body", "expected"), [
    (b'{"model":"m","max_tokens":5,"messages":[]}', (False, 5)), (b'{"model":"m","max_tokens":0,"messages":[],"stream":true}', (True, 0)), (b'{"model":"m","messages":[]}', (False, None)),
])
def test_sketch(body: bytes, expected: tuple[bool, int | None]) -> None:
    """Usage always comes in this dialect; a limit of 0 (it warms a cache) is a limit."""
    found = dialects.read(anthropic_messages.NAME, body)
    assert (found.stream, found.max_output_tokens) == expected
    assert found.wants_usage


@pytest.mark.parametrize("raw", [anthropic_messages.PING, anthropic_messages.END])
def test_our_own_events_are_events(raw: bytes) -> None:
    """The ping and the end marker are whole frames with a name."""
    frame = sse.parse(raw)
    assert frame is not None
    assert orjson.loads(frame.data)["type"] == frame.event


def test_look() -> None:
    """Usage, tier, model and stop reason of a whole answer; an error inside a 200 too."""
    seen = anthropic_messages.look(orjson.dumps({"id": "x", "model": "m", "stop_reason": "max_tokens", "usage": {"input_tokens": 5, "output_tokens": 2, "service_tier": "batch"}}))
    assert (seen.response_id, seen.served_model, seen.served_tier, seen.finish_reason) == ("x", "m", "batch", "length")
    assert anthropic_messages.look(b'{"type":"error","error":{"type":"x","message":"boom"}}').error == "boom"
    assert anthropic_messages.look(b'{"id":"x"}').usage is None
