"""What the input of a sequence of prompts costs at least: a plan that knows the future, and the fixed plans to compare with.

The bound is worked out for each piece of prompt by itself: the requests that share it are known, and for each gap between two
of them the cheapest of storing for short, for long, or not at all is chosen. Limits on marks are left out, so no real plan
can be cheaper.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.providers.marked import Used
from benchmarks.providers.prompt import BYTES_PER_TOKEN, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """In terms of the uncached input token's. `writes`: lifetime in seconds -> price of a write."""

    read: float
    writes: Mapping[float, float]
    automatic: tuple[float, float] | None = None
    """Read price and lifetime (seconds) of a cache that needs no asking."""
    minimum: int = 1024


@dataclass(slots=True)
class _Piece:
    tokens: int
    reaches: int
    """Tokens of the prompt up to the end of the piece."""
    times_s: list[float]


def bound(prompts: Sequence[tuple[float, Prompt]], prices: Prices) -> float:
    """The least cost in uncached input tokens; `prompts` are (seconds, prompt) in order of time."""
    pieces: dict[bytes, _Piece] = {}
    for at_s, prompt in prompts:
        before = 0
        for block in prompt.blocks:
            piece = pieces.setdefault(block.digest, _Piece(block.tokens - before, block.tokens, []))
            piece.times_s.append(at_s)
            before = block.tokens
    return sum(piece.tokens * _least(piece, prices) for piece in pieces.values())


def shared_bound(prompts: Sequence[tuple[float, Prompt]], prices: Prices, unit_tokens: int) -> float:
    """The same for caches that do not care about blocks: pieces are units of that many tokens."""
    size = unit_tokens * BYTES_PER_TOKEN
    pieces: dict[bytes, _Piece] = {}
    rest = 0.0
    for at_s, prompt in prompts:
        whole = len(prompt.text) // size
        for index in range(whole):
            end = (index + 1) * size
            piece = pieces.setdefault(prompt.text[:end][-size:] + hash(prompt.text[:end]).to_bytes(8, signed=True),
                                      _Piece(unit_tokens, min((index + 1) * unit_tokens, prompt.tokens), []))  # fmt: skip
            piece.times_s.append(at_s)
        rest += max(prompt.tokens - whole * unit_tokens, 0)
    return rest + sum(piece.tokens * _least(piece, prices) for piece in pieces.values())


def _least(piece: _Piece, prices: Prices) -> float:
    """Least cost per token over all requests for a piece: after each it is stored for one of the lifetimes, or not."""
    if piece.reaches < prices.minimum:
        return float(len(piece.times_s))
    lives = [0.0, *prices.writes]
    cost = [0.0] + [float("inf")] * (len(lives) - 1)
    last_s = -1e18
    for at_s in piece.times_s:
        gap_s, last_s = at_s - last_s, at_s
        best = min(cost)
        bare = 1.0
        if prices.automatic is not None and gap_s <= prices.automatic[1]:
            bare = prices.automatic[0]
        after = [best + bare, *(best + write for write in prices.writes.values())]
        for index in range(1, len(lives)):
            if gap_s <= lives[index]:
                after[index] = min(after[index], cost[index] + prices.read)
                after[0] = min(after[0], cost[index] + prices.read)
        cost = after
    return min(cost)


def cost_of(used: Used, prices: Prices, lives: Mapping[str, float]) -> float:
    """What one prompt cost, in uncached input tokens."""
    read = prices.automatic[0] if prices.automatic is not None and not used.explicit else prices.read
    written = sum(tokens * prices.writes.get(lives.get(ttl, -1.0), 1.0) for ttl, tokens in used.written.items())
    return used.uncached + used.read * read + written
