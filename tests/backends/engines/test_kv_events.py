"""KV events of any version decode to one form; what breaks a bound is refused as a whole."""
from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.backends.engines.kv_events import BadEvents, Cleared, Event, Removed, Stored, decode_json, decode_zmq

STORED = {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10, "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": None, "medium": "GPU", "extra_keys": [["salt"], None]}  # fmt: skip
REMOVED = {"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU"}
WANT: list[Event] = [Stored((11, 12), 10, (1, 2, 3, 4), 2, "GPU"), Removed((11,), "GPU"), Cleared()]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([1.5, [STORED, REMOVED, {"type": "AllBlocksCleared"}], 0], id="vllm 0.33: a list of maps"),
        pytest.param({"ts": 1.5, "events": [STORED, REMOVED, {"type": "AllBlocksCleared"}]}, id="a map of maps"),
        pytest.param([1.5, [["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU"], ["BlockRemoved", [11], "GPU"], ["AllBlocksCleared"]]], id="older: lists with their tag first"),
        pytest.param([1.5, [STORED, {"type": "Novelty", "x": 1}, REMOVED, {"type": "AllBlocksCleared", "medium": "GPU"}], 3], id="unknown kinds and keys"),
    ],
)  # fmt: skip
def test_every_version_says_the_same(batch: Any) -> None:
    """Maps or lists, with or without optional keys."""
    assert decode_zmq(msgspec.msgpack.encode(batch)) == WANT


def test_hashes_may_be_bytes() -> None:
    """vLLM can be told to publish whole hashes; a first block has no parent."""
    event = STORED | {"block_hashes": [b"x" * 32, b"y" * 32], "parent_block_hash": None}
    (stored,) = decode_zmq(msgspec.msgpack.encode([1.5, [event]]))
    assert isinstance(stored, Stored)
    assert (stored.hashes, stored.parent) == ((b"x" * 32, b"y" * 32), None)


def test_json_is_one_event_or_a_list() -> None:
    """The embedded engine streams one by one, TensorRT-LLM gives lists."""
    assert decode_json(json.dumps(REMOVED).encode()) == decode_json(json.dumps([REMOVED]).encode()) == [WANT[1]]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(msgspec.msgpack.encode([1.5]), id="no events"),
        pytest.param(msgspec.msgpack.encode([1.5, "x"]), id="text for events"),
        pytest.param(msgspec.msgpack.encode([1.5, [7]]), id="a number for an event"),
        pytest.param(msgspec.msgpack.encode([1.5, [STORED | {"token_ids": [1, 2, 3]}]]), id="tokens that are no blocks"),
        pytest.param(msgspec.msgpack.encode([1.5, [STORED | {"token_ids": [1, 2, 3, "4"]}]]), id="a token that is text"),
        pytest.param(msgspec.msgpack.encode([1.5, [STORED | {"block_size": 0}]]), id="blocks of nothing"),
        pytest.param(msgspec.msgpack.encode([1.5, [REMOVED | {"block_hashes": [True]}]]), id="a hash that is a bool"),
        pytest.param(msgspec.msgpack.encode([1.5, [REMOVED | {"block_hashes": [1] * 20_001}]]), id="too many hashes"),
        pytest.param(b"\x00" * (17 << 20), id="too big"),
    ],
)
def test_a_bad_batch_is_refused(payload: bytes) -> None:
    """One named error for all."""
    with pytest.raises(BadEvents):
        decode_zmq(payload)
