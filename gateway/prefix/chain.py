"""The prefix chain of a request: one digest per part, each including all parts before it.

Parts stand in the order in which the provider renders them, so two requests whose chains agree up to part k share a
cacheable prefix up to the end of part k. Cache markers are left out, since no cache compares them. The isolation domain
and the model are the chain's root: chains of two domains never agree, whatever they send.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from gateway.core.part import Block, Part

_KEY_BYTES, _SPARE_BITS = 8, 4
_LONG_PARTS, _MOST_RUNS = 8, 1_024
"""Shorter chains are made anew each time; the conversations that are remembered."""


class Links(NamedTuple):
    """`keys[k]` names the prompt up to and including part k, `ends[k]` is its length in bytes (an image counts as many as its
    tokens would have); whether markers of the client's stand in it.

    A key is 60 bits of a digest: as small as Python keeps a number, and wide enough for an index of millions, where a clash
    makes one wrong forecast.
    """

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    marked: bool


_NONE = Links((), (), False)


class Chain(msgspec.Struct, eq=False):
    """Its links are made when they are first asked for, which of most short prompts nobody does."""

    parts: Sequence[Part] = ()
    """Where the parts stand in the body that the chain was made of."""
    session: str = ""
    """Names the conversation, in all of its turns."""
    root: tuple[str, str] = ("", "")
    """Domain and model."""
    made: Links | None = _NONE

    @property
    def links(self) -> Links:
        made = self.made
        if made is None:
            keys, ends, _, marked = _links(_root(*self.root).copy(), [part.block for part in self.parts], 0)
            made = self.made = Links(tuple(keys), tuple(ends), marked)
        return made

    @property
    def keys(self) -> tuple[int, ...]:
        return self.links.keys

    @property
    def ends(self) -> tuple[int, ...]:
        return self.links.ends

    @property
    def marked(self) -> bool:
        return self.links.marked

    @property
    def names(self) -> tuple[int, ...]:
        """Of the parts, wherever they stand."""
        return tuple([part.block.name or part.block.named() for part in self.parts])


def chain(domain: str, model: str, parts: Sequence[Part], session: bytes = b"") -> Chain:
    """O(parts) hashes at a conversation's first turn, then one for each new part: their bytes have names already."""
    if not session or len(parts) < _LONG_PARTS:
        return Chain(parts, session.hex(), (domain, model), None)
    blocks = [part.block for part in parts]
    conversation = domain, model, session
    known = _runs.pop(conversation, None)
    if known is None or blocks[: len(known.blocks)] != known.blocks:
        known = _Run((), (), (), _root(domain, model), False)
    if len(known.blocks) < len(blocks) - 1:
        known = known.to(blocks[:-1])
    while len(_runs) >= _MOST_RUNS:
        del _runs[next(iter(_runs))]
    _runs[conversation] = known
    run = known.to(blocks)
    return Chain(parts, session.hex(), (domain, model), Links(tuple(run.keys), tuple(run.ends), run.marked))


class _Run(NamedTuple):
    """A chain as far as it has come; `running` is the hash of all its blocks."""

    blocks: Sequence[Block]
    keys: Sequence[int]
    ends: Sequence[int]
    running: Any
    marked: bool

    def to(self, blocks: Sequence[Block]) -> _Run:
        """The chain over these blocks, which begin with its own."""
        ends = self.ends
        keys, more, running, marked = _links(self.running.copy(), blocks[len(self.blocks):], ends[-1] if ends else 0)
        return _Run(blocks, [*self.keys, *keys], [*ends, *more], running, self.marked or marked)


def _links(running: Any, blocks: Sequence[Block], total: int) -> tuple[list[int], list[int], Any, bool]:
    """Keys and ends of these blocks behind what `running` is the hash of and `total` the length; that hash; any markers."""
    update, digest, number = running.update, running.digest, int.from_bytes
    keys: list[int] = []
    ends: list[int] = []
    marked = False
    for block in blocks:
        update((block.name or block.named()).to_bytes(_KEY_BYTES))
        keys.append(number(digest()) >> _SPARE_BITS)
        total += block.weight
        ends.append(total)
        marked = marked or block.marked
    return keys, ends, running, marked


_runs: dict[tuple[str, str, bytes], _Run] = {}
"""Conversation -> its chain up to the last but one part, from which its next turn goes on."""


@lru_cache(4_096)
def _root(domain: str, model: str) -> Any:
    return blake2b(f"{domain}\0{model}\0".encode("utf-8", "replace"), digest_size=_KEY_BYTES)
