"""Over a real ZMQ socket: late joiners get the replay, gaps are filled, and what is lost for good clears the index."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.backends.engines.kv_events import Cleared, Event, Removed

zmq = pytest.importorskip("zmq")
zmq_asyncio = pytest.importorskip("zmq.asyncio")
zmq_events = pytest.importorskip("gateway.backends.engines.zmq_events")


class _Publisher:
    """As vLLM does it: PUB with three frames, and a ROUTER that replays what its buffer still has."""

    def __init__(self) -> None:
        self.context = zmq_asyncio.Context()
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.pub, self.router)]
        self.buffer: dict[int, bytes] = {}
        self.task = asyncio.create_task(self._answer())

    def batch(self, number: int) -> bytes:
        event = {"type": "BlockRemoved", "block_hashes": [number]}
        return msgspec.msgpack.encode([0.0, [event], 0])

    async def publish(self, number: int) -> None:
        await self.pub.send_multipart([b"kv", number.to_bytes(8, "big"), self.batch(number)])

    async def _answer(self) -> None:
        while True:
            who, _, start = await self.router.recv_multipart()
            for number in sorted(self.buffer):
                if number >= int.from_bytes(start, "big"):
                    await self.router.send_multipart([who, b"", number.to_bytes(8, "big"), self.buffer[number]])
            await self.router.send_multipart([who, b"", (-1).to_bytes(8, "big", signed=True), b""])

    def close(self) -> None:
        self.task.cancel()
        self.context.destroy(linger=0)


async def _next(batches: AsyncIterator[list[Event]]) -> list[Event]:
    return await asyncio.wait_for(anext(batches), 20)


async def test_nothing_is_missed_or_told_twice() -> None:
    """Replay first, then live; a gap is asked for; a gap that the buffer lost is told as Cleared."""
    publisher = _Publisher()
    publisher.buffer = {0: publisher.batch(0), 1: publisher.batch(1)}
    source = zmq_events.Source(events=f"tcp://127.0.0.1:{publisher.ports[0]}", replay=f"tcp://127.0.0.1:{publisher.ports[1]}")
    batches = zmq_events.follow(source)
    try:
        assert [await _next(batches) for _ in range(2)] == [[Removed((0,), None)], [Removed((1,), None)]]
        waiting = asyncio.create_task(_next(batches))
        publisher.buffer |= {number: publisher.batch(number) for number in (2, 3)}
        while not waiting.done():  # a subscription takes a moment to be known
            await publisher.publish(3)
            await asyncio.sleep(0.02)
        assert await waiting == [Removed((2,), None)], "the gap, from the replay"
        assert await _next(batches) == [Removed((3,), None)]
        await publisher.publish(9)
        assert await _next(batches) == [Cleared()]
        assert await _next(batches) == [Removed((9,), None)]
    finally:
        await batches.aclose()
        publisher.close()
