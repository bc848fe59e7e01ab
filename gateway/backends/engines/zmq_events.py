"""KV events over ZMQ (vLLM, SGLang): subscribe, notice gaps by number, ask for what was missed. Needs `pyzmq`.

Three frames: topic, number of 8 bytes big endian, batch. A replay is asked for with the first number wanted and ends with
the number -1; what the publisher no longer has means that the index of that engine starts anew, told by a `Cleared`.
"""
from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import zmq
import zmq.asyncio

from gateway.backends.engines.kv_events import Cleared, Event, decode_zmq

_END = (1 << 64) - 1
_REPLAY_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where one rank publishes; `replay` where it can be asked again. A rank r of several listens on port + r."""

    events: str
    replay: str | None = None
    topic: bytes = b""


async def follow(source: Source) -> AsyncIterator[list[Event]]:
    """Batches of events for as long as one listens. Raises `BadEvents` for a batch that is none."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, source.topic)
    socket.connect(source.events)
    try:
        wanted = 0
        for number, payload in await _replay(context, source, 0):
            wanted = number + 1
            yield decode_zmq(payload)
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                continue
            number = int.from_bytes(frames[1], "big")
            if number < wanted <= number + 1_000_000:
                continue  # the replay had it
            for missed, payload in await _missed(context, source, wanted, number):
                yield [Cleared()] if missed < 0 else decode_zmq(payload)
            wanted = number + 1
            yield decode_zmq(frames[2])
    finally:
        context.destroy(linger=0)


async def _missed(context: zmq.asyncio.Context, source: Source, wanted: int, number: int) -> list[tuple[int, bytes]]:
    """What lies between, from the replay; (-1, b"") stands for "start anew" where it cannot be had."""
    if number == wanted:
        return []
    found = [(n, payload) for n, payload in await _replay(context, source, wanted) if wanted <= n < number]
    return found if [n for n, _ in found] == list(range(wanted, number)) else [(-1, b"")]


async def _replay(context: zmq.asyncio.Context, source: Source, start: int) -> list[tuple[int, bytes]]:
    if source.replay is None:
        return []
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    found: list[tuple[int, bytes]] = []
    try:
        socket.connect(source.replay)
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        while await socket.poll(_REPLAY_MS):
            number, payload = (await socket.recv_multipart())[-2:]
            if int.from_bytes(number, "big") == _END:
                break
            found.append((int.from_bytes(number, "big"), payload))
    finally:
        socket.close()
    return found
