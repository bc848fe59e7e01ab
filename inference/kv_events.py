"""What the cache holds, as it changes: server-sent events in vLLM's words, for routers that follow it."""

import asyncio
import time
from functools import partial
from typing import Any

import orjson

from inference.blocks import BLOCK, AllBlocksCleared, BlockPool, BlockStored, Event
from inference.engine import Engine
from inference.http import Receive, Scope, Send, gone, start

_EVERY_S, _SILENT_S = 0.05, 15.0
_A_WRITE = 500


async def follow(engine: Engine, scope: Scope, receive: Receive, send: Send) -> None:
    """Cached blocks as they come and go, in vLLM's words; whoever is new or too late is told the present content."""
    pool = engine.storage.pool
    last = dict(scope["headers"]).get(b"last-event-id", b"")
    sequence = int(last) + 1 if last.isdigit() and len(last) < 20 else -1
    left, said = asyncio.create_task(gone(receive)), time.monotonic()
    await start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
    try:
        while not left.done():
            events = await engine.between_steps(partial(_news, pool, sequence)) if sequence != pool.sequence else []
            for at in range(0, len(events), _A_WRITE):
                data = b"".join(map(_event_frame, events[at : at + _A_WRITE]))
                await send({"type": "http.response.body", "body": data, "more_body": True})
            now = time.monotonic()
            if events:
                sequence, said = events[-1].sequence + 1, now
            elif now - said > _SILENT_S:
                await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
                said = now
            await asyncio.wait([left], timeout=_EVERY_S)
    finally:
        left.cancel()


def _news(pool: BlockPool, sequence: int) -> list[Event]:
    events = pool.since(sequence) if sequence >= 0 else None
    return pool.snapshot() if events is None else events


def _event_frame(event: Event) -> bytes:
    """One event with its number, hashes as the low 64 bits like vLLM's."""
    body: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, BlockStored):
        body |= {
            "block_hashes": [_short(event.block_hash)],
            "parent_block_hash": _short(event.parent_hash),
            "token_ids": event.tokens,
            "block_size": BLOCK,
            "medium": "CPU",
        }
    elif not isinstance(event, AllBlocksCleared):
        body |= {"block_hashes": [_short(event.block_hash)], "medium": "CPU"}
    return b"id: %d\ndata: %s\n\n" % (event.sequence, orjson.dumps(body))


def _short(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big")
