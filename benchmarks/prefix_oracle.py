"""What the input of a sequence of prompts costs at least: a plan that knows the future, and the fixed plans to compare with.

The bound is worked out for each piece of prompt by itself: the requests that share it are known, and for each gap between two
of them the cheapest of storing for short, for long, or not at all is chosen. Limits on marks are left out, so no real plan
can be cheaper.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

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
    times_s: list[float]


def bound(prompts: Sequence[tuple[float, Prompt]], prices: Prices) -> float:
    """The least cost in uncached input tokens; `prompts` are (seconds, prompt) in order of time."""
    pieces: dict[bytes, _Piece] = {}
    rest = 0.0
    for at_s, prompt in prompts:
        if prompt.tokens < prices.minimum:
            rest += prompt.tokens
            continue
        before = 0
        for block in prompt.blocks:
            piece = pieces.setdefault(block.digest, _Piece(block.tokens - before, []))
            piece.times_s.append(at_s)
            before = block.tokens
    return rest + sum(piece.tokens * _least(piece, prices) for piece in pieces.values())


def shared_bound(prompts: Sequence[tuple[float, Prompt]], prices: Prices, unit_tokens: int) -> float:
    """The same for caches that do not care about blocks: pieces are units of that many tokens."""
    size = unit_tokens * BYTES_PER_TOKEN
    pieces: dict[bytes, _Piece] = {}
    rest = 0.0
    for at_s, prompt in prompts:
        running, whole = blake2b(digest_size=16), prompt.tokens // unit_tokens if prompt.tokens >= prices.minimum else 0
        for start in range(0, whole * size, size):
            running.update(prompt.text[start : start + size])
            pieces.setdefault(running.digest(), _Piece(unit_tokens, [])).times_s.append(at_s)
        rest += prompt.tokens - whole * unit_tokens
    return rest + sum(piece.tokens * _least(piece, prices) for piece in pieces.values())


def plan_of(prompts: Sequence[tuple[float, Prompt]], prices: Prices) -> list[list[float]]:
    """What the bound stores: for each prompt and each of its pieces the lifetime from this request on, seconds; 0: none."""
    pieces: dict[bytes, _Piece] = {}
    places: dict[bytes, list[tuple[int, int]]] = {}
    plan = [[0.0] * len(prompt.blocks) for _, prompt in prompts]
    for number, (at_s, prompt) in enumerate(prompts):
        for index, block in enumerate(prompt.blocks):
            pieces.setdefault(block.digest, _Piece(1, [])).times_s.append(at_s)
            places.setdefault(block.digest, []).append((number, index))
    for digest, piece in pieces.items():
        for (number, index), life_s in zip(places[digest], _best(piece, prices)[1], strict=True):
            plan[number][index] = life_s
    return plan


def _least(piece: _Piece, prices: Prices) -> float:
    """As if all that is read could be kept for longer for nothing, as it is by a longer mark behind it."""
    return _best(piece, prices, keeps_longer=True)[0]


def _best(piece: _Piece, prices: Prices, *, keeps_longer: bool = False) -> tuple[float, list[float]]:
    """Least cost per token over all requests for a piece, and for how long it is stored after each; 0: not."""
    lives = [0.0, *prices.writes]
    cost = [0.0] + [float("inf")] * (len(lives) - 1)
    last_s = -1e18
    came_from: list[list[int]] = []
    for at_s in piece.times_s:
        gap_s, last_s = at_s - last_s, at_s
        cheapest = min(range(len(lives)), key=cost.__getitem__)
        bare = 1.0
        if prices.automatic is not None and gap_s <= prices.automatic[1]:
            bare = prices.automatic[0]
        after = [cost[cheapest] + bare, *(cost[cheapest] + write for write in prices.writes.values())]
        origin = [cheapest] * len(lives)
        for index in range(1, len(lives)):
            read = cost[index] + prices.read
            if gap_s <= lives[index]:
                for then in (0, *range(index, len(lives) if keeps_longer else index + 1)):
                    if read < after[then]:
                        after[then], origin[then] = read, index
        cost = after
        came_from.append(origin)
    state = min(range(len(lives)), key=cost.__getitem__)
    total, chosen = cost[state], []
    for origin in reversed(came_from):
        chosen.append(lives[state])
        state = origin[state]
    return total, chosen[::-1]


def cost_of(used: Used, prices: Prices, lives: Mapping[str, float]) -> float:
    """What one prompt cost, in uncached input tokens."""
    read = prices.automatic[0] if prices.automatic is not None and not used.explicit else prices.read
    written = sum(tokens * prices.writes.get(lives.get(ttl, -1.0), 1.0) for ttl, tokens in used.written.items())
    return used.uncached + used.read * read + written
