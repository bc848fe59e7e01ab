"""The prefix chain of a request: one digest per part, each including all parts before it.

Parts stand in the order in which the provider renders them, so two requests whose chains agree up to part k share a
cacheable prefix up to the end of part k. Cache markers are left out, since no cache compares them. The isolation domain
and the model are the chain's root: chains of two domains never agree, whatever they send.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.dialects.parts import Part, unmarked

_KEY_BYTES, _SPARE_BITS = 8, 4


@dataclass(frozen=True, slots=True)
class Chain:
    """`keys[k]` names the prompt up to and including part k, `ends[k]` is its length in bytes.

    A key is 60 bits of SHA-256: as small as Python keeps a number, and wide enough for an index of millions, where a
    clash makes one wrong forecast. `session` names the conversation, in all of its turns.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    session: str = ""
    parts: Sequence[Part] = field(default=(), compare=False)
    """Where the parts stand in the body that the chain was made of."""


def chain(domain: str, model: str, body: bytes, parts: Sequence[Part], session: bytes = b"") -> Chain:
    """O(bytes); SHA-256, since processors have it in hardware."""
    running = sha256(f"{domain}\0{model}\0".encode("utf-8", "replace"))
    view = memoryview(body)
    keys, ends, total = [], [], 0
    suspicious = b'"cache_control"' in body or b'"prompt_cache_breakpoint"' in body
    for part in parts:
        start, end = part[0], part[1]
        value = unmarked(body[start:end]) if suspicious else view[start:end]
        running.update(b"\0")
        running.update(value)
        total += len(value)
        keys.append(int.from_bytes(running.digest()[:_KEY_BYTES]) >> _SPARE_BITS)
        ends.append(total)
    return Chain(tuple(keys), tuple(ends), session.hex(), parts)
