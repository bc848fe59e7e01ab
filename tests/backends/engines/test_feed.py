"""What engines publish of their caches reaches the index: the embedded one live, vLLM's and SGLang's messages over ZMQ."""
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest

from gateway.backends.engines.feed import Contents, Feed
from gateway.backends.engines.kv_events import Cleared, Event, Removed, Stored
from gateway.backends.fleet import Fleet
from gateway.backends.http import HttpxTransport
from gateway.settings import Settings
from gateway.settings_file import BackendSettings
from router_policies.types import Rates


def stored(*hashes: int, medium: str = "GPU") -> Stored:
    return Stored(hashes, None, (1,) * 16 * len(hashes), 16, medium)


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        pytest.param([[Cleared(), stored(1, 2)]], [(False, 0)], id="a feed begins with what is there"),
        pytest.param([[stored(1)], [Cleared()]], [(False, 0), (True, 0)], id="emptied"),
        pytest.param([[stored(1, 2)], [Removed((2,), "GPU")]], [(False, 0), (False, 16)], id="evicted"),
        pytest.param(
            [[stored(1), stored(1, medium="CPU")], [Removed((1,), "GPU")], [Removed((1,), "CPU")]],
            [(False, 0), (False, 0), (False, 16)], id="moved to host memory, then gone",
        ),
        pytest.param([[stored(1)], [Removed((9,), "GPU")]], [(False, 0), (False, 16)], id="its coming was missed"),
        pytest.param([[stored(1)], [Removed((1,), "GPU"), Cleared()]], [(False, 0), (True, 0)], id="emptied after"),
    ],
)  # fmt: skip
def test_a_block_is_gone_when_it_left_the_last_memory(batches: Sequence[Sequence[Event]], told: list[tuple[bool, int]]) -> None:
    contents = Contents()
    assert [contents.take(batch) for batch in batches] == told


def feed(where: str, answer: Any, *, drained: bool = False, replay: str | None = None) -> tuple[Feed, list[int | None]]:
    backend = BackendSettings.model_validate({"dialect": "openai", "url": "http://own:8000/v1", "models": ["m"]})
    fleet = Fleet(Settings.model_construct(backends={"own": backend}, backend_keys={}), lambda *_: Rates())
    told: list[int | None] = []
    transport = HttpxTransport(httpx.MockTransport(answer))
    made = Feed(
        target=fleet.targets["own/standard"], transport=transport, where=where, drained=drained, replay=replay,
        told=lambda backend, tokens: told.append(tokens),
    )  # fmt: skip
    return made, told


async def until(feed: Feed, done: Any) -> None:
    task = asyncio.create_task(feed.run())
    try:
        async with asyncio.timeout(20):
            while not done():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_goes_on_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events in pieces; after a break the next request names the last number; an error is a problem that is told."""
    monkeypatch.setattr("gateway.backends.engines.feed._PAUSE_S", 0.01)
    asked: list[str | None] = []
    new = b'id: 7\ndata: {"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2}\n\n'
    gone = b'id: 8\ndata: {"type": "BlockRemoved", "block_hashes": [1]}\n\n'

    async def pieces() -> Any:
        for at in range(0, len(new + gone), 11):
            yield (new + gone)[at : at + 11]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        return httpx.Response(500) if len(asked) > 2 else httpx.Response(200, stream=_Stream(pieces()))

    made, told = feed("/kv_events", answer)
    await until(made, lambda: made.problem == "/kv_events answered 500")
    assert asked[:3] == [None, "8", "8"]
    assert told == [2, 2]


class _Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: Any) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> Any:
        async for piece in self._pieces:
            yield piece


async def test_a_list_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's: each request takes what has happened since the one before."""
    monkeypatch.setattr("gateway.backends.engines.feed._DRAIN_EVERY_S", 0.01)
    batches = [[{"type": "BlockStored", "block_hashes": [1], "token_ids": [1] * 32, "block_size": 32}],
               [{"type": "BlockRemoved", "block_hashes": [1]}]]  # fmt: skip
    made, told = feed(
        "/kv_cache_events", lambda _: httpx.Response(200, stream=httpx.ByteStream(msgspec.json.encode(batches.pop(0) if batches else []))),
        drained=True,
    )  # fmt: skip
    await until(made, lambda: told)
    assert told == [32]


RECORDED = {
    "vllm 0.33": [0.5, [{"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": None, "token_ids": list(range(32)),
                         "block_size": 16, "lora_id": None, "medium": "GPU", "extra_keys": [["salt"], None]},
                        {"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU"}], 0],
    "vllm 0.8": [0.5, [["BlockStored", [11, 12], None, list(range(32)), 16, None], ["BlockRemoved", [12]]]],
    "sglang 0.5": {"ts": 0.5, "events": [{"type": "BlockStored", "block_hashes": [-5, -6], "parent_block_hash": None,
                                          "token_ids": list(range(32)), "block_size": 16, "medium": "GPU", "session_id": "s"},
                                         {"type": "BlockRemoved", "block_hashes": [-6], "medium": "GPU"}], "attn_dp_rank": 0},
}  # fmt: skip


@pytest.mark.parametrize("product", RECORDED)
async def test_zmq_messages_of_each_product(product: str) -> None:
    """The same two blocks, one of them evicted again, in each product's words on a real socket."""
    zmq, azmq = pytest.importorskip("zmq"), pytest.importorskip("zmq.asyncio")
    context = azmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    made, told = feed(f"tcp://127.0.0.1:{port}", None)
    payload = msgspec.msgpack.encode(RECORDED[product])

    async def publish() -> None:
        while True:
            await publisher.send_multipart([b"kv", (0).to_bytes(8, "big"), payload])
            await asyncio.sleep(0.02)

    task = asyncio.create_task(publish())
    try:
        await until(made, lambda: told)
    finally:
        task.cancel()
        context.destroy(linger=0)
    assert told[0] == 16
    assert len(made.contents) == 1
