"""The prefix chain of a request: one digest per part, each including all parts before it.

Parts stand in the order in which the provider renders them, so two requests whose chains agree up to part k share a
cacheable prefix up to the end of part k. Cache markers are left out, since no cache compares them. The isolation domain
and the model are the chain's root: chains of two domains never agree, whatever they send.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.core.part import Part

_KEY_BYTES, _SPARE_BITS = 8, 4


class Chain(msgspec.Struct, frozen=True):
    """`keys[k]` names the prompt up to and including part k, `ends[k]` is its length in bytes.

    A key is 60 bits of a digest: as small as Python keeps a number, and wide enough for an index of millions, where a clash
    makes one wrong forecast. `session` names the conversation, in all of its turns.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    session: str = ""
    parts: Sequence[Part] = ()
    """Where the parts stand in the body that the chain was made of."""
    marked: bool = False
    """Whether markers of the client's stand in them."""

    @property
    def names(self) -> tuple[int, ...]:
        """Of the parts, wherever they stand."""
        return tuple([part.block.name for part in self.parts])


def chain(domain: str, model: str, parts: Sequence[Part], session: bytes = b"") -> Chain:
    """O(parts): their bytes have names already."""
    running = _root(domain, model).copy()
    update, digest, number = running.update, running.digest, int.from_bytes
    keys, ends, total, marked = [], [], 0, False
    for part in parts:
        block = part.block
        update(block.name.to_bytes(_KEY_BYTES))
        keys.append(number(digest()) >> _SPARE_BITS)
        total += block.bare
        ends.append(total)
        marked = marked or block.marked
    return Chain(tuple(keys), tuple(ends), session.hex(), parts, marked)


@lru_cache(4_096)
def _root(domain: str, model: str) -> Any:
    return blake2b(f"{domain}\0{model}\0".encode("utf-8", "replace"), digest_size=_KEY_BYTES)
