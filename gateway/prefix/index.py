"""Which lane was seen to hold which prefix, and until when.

Learnt from our own traffic: an answered prompt is in the cache of the lane's pool as long as the backend keeps it, and
the provider's own count of the prompt says how many tokens that was. What a later call will read is then the length of
its longest known prefix. Memory is bounded: the oldest prefixes go first.
"""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.prefix.chain import Chain


@dataclass(slots=True)
class _Held:
    tokens: int
    until_us: int


class PrefixIndex:
    """Prefixes by pool; a pool is what shares one cache, such as all lanes of an own engine."""

    def __init__(self, max_prefixes: int = 200_000) -> None:
        self._max_prefixes = max_prefixes
        self._held: OrderedDict[tuple[str, bytes], _Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def predict(self, pool: str, chain: Chain, now_us: int) -> int:
        """Tokens of the chain's longest prefix that the pool should still hold; 0 if none."""
        for digest in reversed(chain.digests):
            held = self._held.get((pool, digest))
            if held is not None and held.until_us > now_us:
                return held.tokens
        return 0

    def learn(self, pool: str, chain: Chain, prompt_tokens: int, now_us: int, ttl_s: float) -> None:
        """Notes that the pool has just computed this prompt of `prompt_tokens` tokens.

        Parts inside the prompt get their share by bytes, since no provider counts them apart.
        """
        if not chain.digests or prompt_tokens <= 0:
            return
        until_us, whole = now_us + int(ttl_s * 1e6), max(chain.ends[-1], 1)
        for digest, end in zip(chain.digests, chain.ends, strict=True):
            key = (pool, digest)
            known = self._held.pop(key, None)
            tokens = prompt_tokens if end == whole else prompt_tokens * end // whole
            self._held[key] = _Held(max(tokens, known.tokens) if known and end != whole else tokens, until_us)
        while len(self._held) > self._max_prefixes:
            self._held.popitem(last=False)
