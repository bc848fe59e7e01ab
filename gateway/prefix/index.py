"""Which pool was seen to hold which prefix, until when, and how many tokens that is.

Learnt from our own traffic: an answered prompt is in the cache of the lane's pool as long as the backend keeps it, and the
provider's own count says how many tokens it has. Parts inside it get their share by bytes, until a call that went on
otherwise behind such a part tells by its cached count what the part really has. A prefix that has run out is kept for a
while: it tells expiry from novelty. Memory is bounded; what was used longest ago goes first.

An entry is two small numbers in a dictionary, `BYTES_AN_ENTRY` with everything (`python -m benchmarks.normalize` measures).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from math import gcd
from typing import NamedTuple

from gateway.prefix.chain import Chain

BYTES_AN_ENTRY = 160
MAX_BYTES = 64 * 1024 * 1024
_KEY_MASK = (1 << 60) - 1
_UNTIL_BITS = 32
_UNTIL_MASK = (1 << _UNTIL_BITS) - 1
_COUNTED = 1 << _UNTIL_BITS
"""Set where a provider's count said how many tokens a prefix has, not their share by bytes."""
_TOKENS_AT = _UNTIL_BITS + 1
_MARK_BYTES, _MARKED_BYTES, _MARKED_PARTS = 32, 2_048, 2
"""Conversations part ways in the system prompt or in what the user says first; an engine's block is some 60 bytes."""
_COARSE_BYTES = 4 * _MARK_BYTES
"""For what an engine lets go: a mark that is missing ends the walk over the finer ones."""
_LARGEST_BLOCK = 128
_NEWS_S = 15
"""A prefix that is only renewed is told to others after so long."""
_SWEEP = 8
"""A full index drops its oldest eighth at once, so that no single call pays much."""

Said = Callable[[int], bytes | None]
"""Place of a part -> the text in it, if it is the assistant's."""


class Found(NamedTuple):
    """The longest prefix that is known: `depth` parts of the chain, `tokens` long, until a second of the epoch."""

    depth: int = 0
    tokens: int = 0
    until_s: int = 0


class PrefixIndex:
    """One per process. `max_bytes` bounds its memory."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._most = max(max_bytes // BYTES_AN_ENTRY, _SWEEP)
        self._held: dict[int, int] = {}
        self._roots: dict[tuple[str, str], int] = {}
        self._epochs: dict[str, int] = {}
        self._blocks: dict[str, int] = {}
        """Tokens of a pool's block, as far as its counts tell: they are all multiples of it."""
        self.fresh: dict[int, int] | None = None
        """What was learnt since it was last taken, for who shares it; None if nobody does."""

    def __len__(self) -> int:
        return len(self._held)

    def predict(
        self, domain: str, pool: str, chain: Chain, now_us: int, said: Said | None = None, body: bytes | None = None
    ) -> int:
        """Tokens of the longest prefix that the pool should still hold; 0 if none. `said` where a pool keeps answers too, and
        `body` where it shares what two prompts begin with, wherever that ends."""
        if body is None:
            return self._predicted(domain, pool, chain, now_us, said, None)
        tokens, block = self._predicted(domain, pool, chain, now_us, said, body), self._blocks.get(pool, 1)
        return tokens - tokens % block if block <= _LARGEST_BLOCK else tokens

    def _predicted(
        self, domain: str, pool: str, chain: Chain, now_us: int, said: Said | None, body: bytes | None
    ) -> int:
        found = self.find(domain, pool, chain)
        if body is not None and found.depth < _MARKED_PARTS:
            mark = self._mark(self._root(domain, pool), chain, found.depth, body)
            if mark and (mark & _UNTIL_MASK) * 1_000_000 > now_us:
                return max(mark >> _TOKENS_AT, found.tokens)
        if found.until_s * 1_000_000 <= now_us:
            return self._alive(domain, pool, chain, now_us) if found.depth else 0
        if said is not None and found.depth < len(chain.keys) and (text := said(found.depth)) is not None:
            answered = self._held.get(_answer(self._root(domain, pool), chain.keys[found.depth - 1], text))
            if answered is not None and (answered & _UNTIL_MASK) * 1_000_000 > now_us:
                return answered >> _TOKENS_AT
        return found.tokens

    def find(self, domain: str, pool: str, chain: Chain) -> Found:
        """The longest prefix that the pool was ever seen to hold, run out or not."""
        root, held = self._root(domain, pool), self._held
        for depth in range(len(chain.keys), 0, -1):
            value = held.get(chain.keys[depth - 1] ^ root)
            if value is not None:
                return Found(depth, value >> _TOKENS_AT, value & _UNTIL_MASK)
        return Found()

    def learn(
        self, domain: str, pool: str, chain: Chain, prompt_tokens: int, now_us: int, ttl_s: float, *,
        cached: int | None = None, answer: tuple[bytes, int] | None = None, body: bytes | None = None,
    ) -> None:  # fmt: skip
        """The pool has just computed this prompt. `cached`: what it says it had already; `answer`: text and tokens of the
        answer, where the pool keeps those too; `body` as for `predict`."""
        if not chain.keys or prompt_tokens <= 0:
            return
        root, held = self._root(domain, pool), self._held
        until, whole = min(now_us // 1_000_000 + int(ttl_s), _UNTIL_MASK), max(chain.ends[-1], 1)
        before = self.find(domain, pool, chain) if cached else Found()
        if body is not None and cached:
            self._blocks[pool] = gcd(self._blocks.get(pool, 0), cached)
        if body is not None and (mark := self._learn_marks(root, chain, body, prompt_tokens, until)) and before.depth:
            before = before._replace(depth=0) if mark == before.depth else before   # its count reaches into the next part
        last = len(chain.keys) - 1
        if answer is not None and answer[0]:
            self._put(_answer(root, chain.keys[last], answer[0]), prompt_tokens + answer[1], until | _COUNTED)
        self._put(chain.keys[last] ^ root, prompt_tokens, until | _COUNTED)
        least, fresh, pop = prompt_tokens, self.fresh, held.pop
        below, base_tokens, base_end = last, 0, 0
        for n in range(last - 1, -1, -1):  # the tail first: it is the first that a cache lets go
            key = chain.keys[n] ^ root
            known = pop(key, 0)
            tokens, counted = known >> _TOKENS_AT, known & _COUNTED
            if not counted and cached and n + 1 == before.depth:
                tokens, counted = cached, _COUNTED
            elif not known:
                if n < below:
                    below, base_tokens, base_end = self._below(root, chain, n)
                share = (chain.ends[n] - base_end) / max(whole - base_end, 1)
                tokens = base_tokens + int(max(prompt_tokens - base_tokens, 0) * share)
            if tokens < least:
                least = tokens
            held[key] = value = least << _TOKENS_AT | counted | until
            if fresh is not None and (value - known > _NEWS_S or value < known):
                fresh[key] = value
        if len(held) > self._most:
            self._sweep()

    def take(self, pairs: Iterable[tuple[int, int]]) -> None:
        """What another process has learnt."""
        for key, value in pairs:
            known = self._held.pop(key, 0)
            self._held[key] = value if value & _UNTIL_MASK >= known & _UNTIL_MASK else known
        if len(self._held) > self._most:
            self._sweep()

    def cleared(self, pool: str) -> None:
        """The pool says that it holds nothing any more."""
        self._epochs[pool] = self._epochs.get(pool, 0) + 1
        self._roots = {known: root for known, root in self._roots.items() if known[1] != pool}

    def places(self, domain: str, pool: str, chain: Chain, body: bytes) -> list[tuple[int, int]]:
        """Where a prompt is held, its head first: keys for `shrink`, each with the tokens up to there."""
        root, keys = self._root(domain, pool), list[int]()
        for n, key in enumerate(chain.keys):
            if n < _MARKED_PARTS:
                keys += [mark for _, mark in _marks(root, chain, n, body, _COARSE_BYTES)]
            keys.append(key ^ root)
        return [(key, self._held[key] >> _TOKENS_AT) for key in keys if key in self._held]

    def shrink(self, key: int, tokens: int | None = None) -> None:
        """A pool has let so many tokens go from the end of what lies there; None: all."""
        if tokens is None:
            self._held.pop(key, None)
        elif (value := self._held.get(key)) is not None:
            self._held[key] = max((value >> _TOKENS_AT) - tokens, 0) << _TOKENS_AT | value & (_COUNTED | _UNTIL_MASK)

    def _alive(self, domain: str, pool: str, chain: Chain, now_us: int) -> int:
        """A prefix may outlive a longer one, since every call that uses it renews it."""
        root = self._root(domain, pool)
        for key in reversed(chain.keys):
            value = self._held.get(key ^ root)
            if value is not None and (value & _UNTIL_MASK) * 1_000_000 > now_us:
                return value >> _TOKENS_AT
        return 0

    def _mark(self, root: int, chain: Chain, depth: int, body: bytes) -> int:
        """What is held of part `depth` as far as it begins like an earlier one, as a value; 0 if nothing."""
        found = 0
        for _, key in _marks(root, chain, depth, body):
            value = self._held.get(key)
            if value is None:
                break
            found = value
        return found

    def _learn_marks(self, root: int, chain: Chain, body: bytes, tokens: int, until: int) -> int:
        """Keeps where the first parts that are new have their marks; the first part of which some were known, or 0."""
        shared, whole = 0, max(chain.ends[-1], 1)
        for n in range(min(_MARKED_PARTS, len(chain.keys))):
            if chain.keys[n] ^ root in self._held:
                continue
            for at, key in _marks(root, chain, n, body):
                if key in self._held:
                    shared = shared or n
                    self._put(key, self._held[key] >> _TOKENS_AT, until)
                else:
                    before = chain.ends[n - 1] if n else 0
                    self._put(key, tokens * (before + at) // whole, until)
        return shared

    def _below(self, root: int, chain: Chain, n: int) -> tuple[int, int, int]:
        """The longest prefix shorter than part `n` whose tokens are known: its place (-1: none), tokens and bytes."""
        for place in range(n - 1, -1, -1):
            value = self._held.get(chain.keys[place] ^ root)
            if value is not None:
                return place, value >> _TOKENS_AT, chain.ends[place]
        return -1, 0, 0

    def _put(self, key: int, tokens: int, until: int) -> None:
        value = tokens << _TOKENS_AT | until
        known = self._held.pop(key, 0)
        self._held[key] = value
        if self.fresh is not None and (value - known > _NEWS_S or value < known):
            self.fresh[key] = value

    def _sweep(self) -> None:
        for key in list(islice(self._held, max(len(self._held) // _SWEEP, len(self._held) - self._most))):
            del self._held[key]

    def _root(self, domain: str, pool: str) -> int:
        known = self._roots.get((domain, pool))
        if known is None:
            named = f"{domain}\0{pool}\0{self._epochs.get(pool, 0)}".encode("utf-8", "replace")
            known = self._roots[domain, pool] = int.from_bytes(blake2b(named, digest_size=8).digest()) & _KEY_MASK
        return known


def _marks(root: int, chain: Chain, depth: int, body: bytes, step: int = _MARK_BYTES) -> Iterator[tuple[int, int]]:
    """(bytes, key) of each beginning of a part, one every few words; the same keys whatever multiple of these the step is."""
    if depth >= len(chain.parts):
        return
    start, end = chain.parts[depth].span
    running = blake2b(digest_size=8, key=((chain.keys[depth - 1] if depth else 0) ^ root).to_bytes(8))
    for at in range(start + step, min(end, start + _MARKED_BYTES), step):
        running.update(body[at - step : at])
        yield at - start, int.from_bytes(running.digest()) & _KEY_MASK


def _answer(root: int, key: int, text: bytes) -> int:
    named = blake2b(text, digest_size=8, key=key.to_bytes(8))
    return int.from_bytes(named.digest()) & _KEY_MASK ^ root
