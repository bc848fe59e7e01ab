"""Recorded streams, and how a client gets them."""
from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson

from gateway import dialects
from gateway.core.call import Sketch
from gateway.dialects import sse

WIRE = Path(__file__).parent.parent / "wire"


def wire(path: str) -> bytes:
    return (WIRE / path).read_bytes()


def sketch(dialect: str = "openai_chat", **fields: Any) -> Sketch:
    body = {"model": "m", "messages": [], "input": [], "stream": True, **fields}
    return dialects.read(dialect, orjson.dumps(body))


def data(raw: bytes) -> list[Any]:
    """The events in a stream as a client reads them; `[DONE]` stays text."""
    split = sse.Splitter()
    pieces = [*split.feed(raw), split.rest()]
    found = [frame.data for piece in pieces if (frame := sse.parse(piece)) is not None]
    return [each.decode() if each == b"[DONE]" else orjson.loads(each) for each in found]


def play(client: str, upstream: str, raw: bytes, *, hide: bool = False, cuts: tuple[int, ...] = ()) -> tuple[bytes, Any]:
    """What a client gets of a recorded stream cut at these places, and the relay afterwards."""
    relay = dialects.relay(client, upstream, sketch(client), hide_usage=hide)
    edges = [0, *sorted(cuts), len(raw)]
    out = b"".join(relay.feed(raw[a:b]) for a, b in itertools.pairwise(edges) if b > a)
    return out + relay.finish(), relay


def schema_of(dialect: str, *, stream: bool) -> Any:
    import anthropic.types
    import openai.types.chat
    import openai.types.responses
    from pydantic import TypeAdapter

    types = {
        ("openai_chat", True): openai.types.chat.ChatCompletionChunk,
        ("openai_chat", False): openai.types.chat.ChatCompletion,
        ("openai_responses", True): openai.types.responses.ResponseStreamEvent,
        ("openai_responses", False): openai.types.responses.Response,
        ("anthropic_messages", True): anthropic.types.RawMessageStreamEvent,
        ("anthropic_messages", False): anthropic.types.Message,
    }
    return TypeAdapter(types[dialect, stream])
