"""What engines publish about their caches -> events of one form. vLLM and SGLang send the same frames.

Batches are decoded by shape, because versions differ: a list or a map for the batch, a list with its tag first or a map
for an event. Unknown keys and kinds are passed over; a batch that breaks a bound is refused as a whole.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

MOST_BYTES, MOST_EVENTS, MOST_HASHES, MOST_TOKENS = 16 << 20, 20_000, 20_000, 1_000_000
_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}

Hash = int | bytes


class BadEvents(ValueError):
    """A batch that is not one; the index of that engine should be dropped and built anew."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that can now be hit, each holding `block_size` of the tokens, after a parent (None: the first)."""

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[int, ...]
    block_size: int
    medium: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are gone."""

    hashes: tuple[Hash, ...]
    medium: str | None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache is empty."""


Event = Stored | Removed | Cleared


def decode_zmq(payload: bytes) -> list[Event]:
    """The third frame of a ZMQ message: msgpack of [time, events, rank] or a map. Raises `BadEvents`."""
    if len(payload) > MOST_BYTES:
        raise BadEvents(f"a batch of {len(payload)} bytes")
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvents(f"not msgpack: {error}") from error
    if isinstance(batch, dict):
        return decode(batch.get("events"))
    return decode(batch[1] if isinstance(batch, list) and len(batch) > 1 else None)


def decode_json(payload: bytes) -> list[Event]:
    """One event as the embedded engine streams it, or a list as TensorRT-LLM gives. Raises `BadEvents`."""
    if len(payload) > MOST_BYTES:
        raise BadEvents(f"a batch of {len(payload)} bytes")
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvents(f"not JSON: {error}") from error
    return decode(found if isinstance(found, list) else [found])


def decode(raw: object) -> list[Event]:
    """Decoded events -> ours. Raises `BadEvents`."""
    if not isinstance(raw, list) or len(raw) > MOST_EVENTS:
        raise BadEvents("no list of events, or too long a one")
    return [event for entry in raw if (event := _event(entry)) is not None]


def _event(entry: object) -> Event | None:
    kind, fields = _fields(entry)
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in _FIELDS:
        return None
    hashes = _hashes(fields.get("block_hashes"))
    medium = fields.get("medium")
    medium = medium[:32] if isinstance(medium, str) else None
    if kind == "BlockRemoved":
        return Removed(hashes, medium)
    parent, tokens, size = fields.get("parent_block_hash"), fields.get("token_ids"), fields.get("block_size")
    if parent is not None and type(parent) not in (int, bytes):
        raise BadEvents("a parent that is no hash")
    if not isinstance(tokens, list) or len(tokens) > MOST_TOKENS or not all(type(token) is int for token in tokens):
        raise BadEvents("token_ids is no bounded list of numbers")
    if type(size) is not int or not 1 <= size <= 1 << 16 or len(tokens) != size * len(hashes):
        raise BadEvents(f"{len(tokens)} tokens are not {len(hashes)} blocks of {size!r}")
    return Stored(hashes, parent, tuple(tokens), size, medium)


def _fields(entry: object) -> tuple[str, dict[str, Any]]:
    """A map with `type`, or a list with the tag first and the rest in order."""
    if isinstance(entry, dict):
        return str(entry.get("type")), entry
    if isinstance(entry, list) and entry and isinstance(entry[0], str):
        return entry[0], dict(zip(_FIELDS.get(entry[0], ()), entry[1:], strict=False))
    raise BadEvents("an event that is neither map nor list")


def _hashes(raw: object) -> tuple[Hash, ...]:
    if not isinstance(raw, Sequence) or len(raw) > MOST_HASHES or not all(type(one) in (int, bytes) for one in raw):
        raise BadEvents("block_hashes is no bounded list of hashes")
    return tuple(raw)
