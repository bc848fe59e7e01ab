"""What an engine of one's own says of its cache (vLLM's and SGLang's KV events), brought into the index.

Their block hashes are over tokens, which the gateway does not have, so blocks cannot be matched with prompts one by one. Two
facts are used: that the cache was emptied, and how many tokens were evicted. Engines evict what was used longest ago, a
prompt's tail first, which is the order in which prefixes shrink and are dropped here. Stored blocks need no event: the
answers told them.
"""
from __future__ import annotations

from collections import OrderedDict

from gateway.prefix.chain import Chain
from gateway.prefix.index import PrefixIndex

_MOST_PREFIXES = 100_000


class KvWatch:
    """Follows the pools that tell their events."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._held: dict[str, OrderedDict[int, int]] = {}
        """Pool -> key in the index -> tokens that lie between it and the one before; what goes next comes first."""

    def learnt(self, domain: str, pool: str, chain: Chain, body: bytes) -> None:
        """The index has just learnt a prompt: it is the pool's latest, its tail the oldest of it."""
        held, places = self._held.setdefault(pool, OrderedDict()), self._index.places(domain, pool, chain, body)
        befores = [0, *(tokens for _, tokens in places)]
        for (key, tokens), before in zip(reversed(places), reversed(befores[:-1]), strict=True):
            held.pop(key, None)
            held[key] = max(tokens - before, 0)
        while len(held) > _MOST_PREFIXES:
            held.popitem(last=False)

    def told(self, pool: str, tokens: int | None) -> None:
        """So many tokens left the pool's cache; None: it holds nothing any more, emptied or started anew."""
        if tokens is None:
            self._held.pop(pool, None)
            self._index.cleared(pool)
            return
        held = self._held.get(pool)
        while held and tokens:
            key, size = next(iter(held.items()))
            if tokens < size:
                held[key] = size - tokens
                self._index.shrink(key, tokens)
                return
            del held[key]
            self._index.shrink(key)
            tokens -= size
