"""What an engine of one's own says of its cache (vLLM's and SGLang's KV events), brought into the index.

Their block hashes are over tokens, which the gateway does not have, so blocks cannot be matched with prompts one by one. Two
facts are used: that the cache was emptied, and how many tokens were evicted. Engines evict what was used longest ago, a
prompt's tail first, which is the order in which prefixes are dropped here. Stored blocks need no event: the answers told them.
"""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from gateway.prefix.chain import Chain
from gateway.prefix.index import PrefixIndex

_MOST_PREFIXES = 100_000


@dataclass(frozen=True, slots=True)
class Evicted:
    """So many tokens left the pool's cache."""

    pool: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The pool holds nothing any more: it was emptied, or started anew."""

    pool: str


class KvEvents(Protocol):
    """Where an engine's adapter tells what happened."""

    def happened(self, event: Evicted | Cleared) -> None: ...


class KvWatch:
    """Follows the pools that tell their events."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._held: dict[str, OrderedDict[tuple[str, int], int]] = {}
        self._owed: dict[str, int] = {}

    def learnt(self, domain: str, pool: str, chain: Chain, tokens: int) -> None:
        """An answered prompt: its parts are the pool's latest, the tail oldest among them."""
        held, whole, before = self._held.setdefault(pool, OrderedDict()), max(chain.ends[-1], 1) if chain.ends else 1, 0
        sizes = []
        for end in chain.ends:
            sizes.append(tokens * end // whole - before)
            before += sizes[-1]
        for key, size in reversed(list(zip(chain.keys, sizes, strict=True))):
            held.pop((domain, key), None)
            held[domain, key] = size
        while len(held) > _MOST_PREFIXES:
            held.popitem(last=False)

    def happened(self, event: Evicted | Cleared) -> None:
        if isinstance(event, Cleared):
            self._held.pop(event.pool, None)
            self._owed.pop(event.pool, None)
            self._index.cleared(event.pool)
            return
        held, owed = self._held.get(event.pool), self._owed.get(event.pool, 0) + event.tokens
        while held and owed >= (size := next(iter(held.values()))):
            (domain, key), _ = held.popitem(last=False)
            self._index.drop(domain, event.pool, [key])
            owed -= size
        self._owed[event.pool] = owed if held else 0
