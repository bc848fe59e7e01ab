"""The prefix chain of a request: one digest per part, each including all parts before it.

Parts stand in the order in which the provider renders them, so two requests whose chains agree up to part k share a
cacheable prefix up to the end of part k. Cache markers are left out, since no cache compares them. The isolation domain
and the model are the chain's root: chains of two domains never agree, whatever they send.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from gateway.dialects.parts import MARKERS, Part, unmarked

_KEY_BYTES, _SPARE_BITS = 8, 4
_NAMES = [marker[1:] for marker in MARKERS]


class Chain(msgspec.Struct, frozen=True):
    """`keys[k]` names the prompt up to and including part k, `ends[k]` is its length in bytes.

    A key is 60 bits of SHA-256: as small as Python keeps a number, and wide enough for an index of millions, where a
    clash makes one wrong forecast. `session` names the conversation, in all of its turns.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    session: str = ""
    parts: Sequence[Part] = ()
    """Where the parts stand in the body that the chain was made of."""
    marked: bool = False
    """Whether markers of the client's may stand in that body."""


def chain(domain: str, model: str, body: bytes, parts: Sequence[Part], session: bytes = b"") -> Chain:
    """O(bytes); SHA-256, since processors have it in hardware."""
    running = _root(domain, model).copy()
    update, digest, number = running.update, running.digest, int.from_bytes
    keys, ends, total = [], [], 0
    suspicious = any([body.rfind(name) >= 0 for name in _NAMES])    # the quickest scan for so much that is seldom there
    for start, end, _, _ in parts:
        value = b"\0" + body[start:end]
        if suspicious:
            value = unmarked(value)
        update(value)
        total += len(value) - 1
        keys.append(number(digest()[:_KEY_BYTES]) >> _SPARE_BITS)
        ends.append(total)
    return Chain(tuple(keys), tuple(ends), session.hex(), parts, suspicious)


@lru_cache(4_096)
def _root(domain: str, model: str) -> Any:
    return sha256(f"{domain}\0{model}\0".encode("utf-8", "replace"))
