"""Attention over paged keys and values: where they are kept, and the two ways to attend.

Rows that decode or verify use two plain products; rows of a prompt use torch's fused attention in tiles of 64 rows
that lie on a fixed grid of positions. Both are shaped so that a row's bits depend on its position and on what it sees,
never on how many rows are computed with it, where a chunk began, or what came from the cache.

Block 0 is the null block: it pads tables and takes the writes of padding rows; what it holds is always masked.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 64
NULL_BLOCK = 0
_MOST_ROWS = 17


@dataclass(frozen=True, slots=True)
class Heads:
    """How many query heads share how many key heads, and their size."""

    query: int
    key: int
    size: int

    @property
    def shared(self) -> int:
        """Query heads for one key head."""
        return self.query // self.key


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring rows of one sequence: `count` from `row`, the first at `position`; `table` are its blocks."""

    row: int
    count: int
    position: int
    table: Tensor
    decode: bool


class KVCache:
    """Keys and values of all layers in blocks. Memory is taken from the system only as blocks are first used."""

    def __init__(self, layers: int, blocks: int, block_size: int, heads: Heads, dtype: torch.dtype) -> None:
        shape = (blocks + 1, block_size, 2, heads.key, heads.size)  # one more: the null block
        self.dtype, self.block_size, self.heads = dtype, block_size, heads
        self._layers = [_zeros(shape, dtype) for _ in range(layers)]

    @property
    def bytes_per_token(self) -> int:
        """What one position costs over all layers."""
        return len(self._layers) * 2 * self.heads.key * self.heads.size * self.dtype.itemsize

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Store [rows, 2, key heads, size] at slots (block * block size + offset)."""
        pool = self._layers[layer]
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, rows.to(self.dtype))

    def gather(self, layer: int, table: Tensor) -> Tensor:
        """The blocks of a table one after the other: [tokens, 2, key heads, size] in float32."""
        blocks = self._layers[layer].index_select(0, table)
        return blocks.view(-1, 2, self.heads.key, self.heads.size).float()


class Attention:
    """Attends spans over a cache. `exact` says whether decode rows came out the same in every company."""

    def __init__(self, heads: Heads, context: int) -> None:
        self._heads, self._scale = heads, heads.size**-0.5
        self._context = -(-context // TILE) * TILE
        triangle = torch.full((TILE, TILE), float("-inf")).triu(1).repeat(heads.shared, 1)
        self._bias = F.pad(triangle, (self._context, 0))
        least = _least_rows(heads)
        self.exact = least is not None
        self._least_rows = least or 1

    def __call__(self, layer: int, q: Tensor, cache: KVCache, spans: list[Span]) -> Tensor:
        """[rows, query heads, size] -> the same shape; rows outside the spans are zero."""
        out = torch.zeros_like(q)
        for span in spans:
            rows = slice(span.row, span.row + span.count)
            kv = cache.gather(layer, span.table)
            out[rows] = (self.decode if span.decode else self.prefill)(q[rows], span.position, kv)
        return out

    def decode(self, q: Tensor, position: int, kv: Tensor) -> Tensor:
        """Few rows from `position` on. `kv` is whole tiles long: the sum over values keeps its order that way."""
        count, heads = q.shape[0], self._heads
        rows = max(count, self._least_rows)
        if rows > count:
            q = torch.cat((q, q[-1:].expand(rows - count, -1, -1)))
        folded = (q * self._scale).view(rows, heads.key, heads.shared, heads.size).transpose(0, 1)
        scores = torch.bmm(folded.reshape(heads.key, -1, heads.size), kv[:, 0].permute(1, 2, 0))
        scores[:, :, position:] += _later(count, rows, kv.shape[0] - position, heads.shared)
        out = torch.bmm(torch.softmax(scores, -1), kv[:, 1].transpose(0, 1))
        out = out.view(heads.key, rows, heads.shared, heads.size).transpose(0, 1)
        return out[:count].reshape(count, heads.query, heads.size)

    def prefill(self, q: Tensor, position: int, kv: Tensor) -> Tensor:
        """Rows from `position` on; `kv` must reach to the end of the last tile, what lies behind the rows is masked."""
        count, heads = q.shape[0], self._heads
        first = position // TILE * TILE
        tiles = -(-(position + count - first) // TILE)
        before = position - first
        q = F.pad(q, (0, 0, 0, 0, before, tiles * TILE - before - count))
        q = q.view(tiles, TILE, heads.key, heads.shared, heads.size).permute(0, 2, 3, 1, 4)
        q = q.reshape(tiles, heads.key, heads.shared * TILE, heads.size)
        keys, values = kv[:, 0].transpose(0, 1)[None], kv[:, 1].transpose(0, 1)[None]
        outs = []
        for tile in range(tiles):
            end = first + (tile + 1) * TILE
            bias = self._bias[:, self._context + TILE - end :]
            outs.append(
                F.scaled_dot_product_attention(
                    q[tile : tile + 1], keys[:, :, :end], values[:, :, :end], attn_mask=bias, scale=self._scale
                )
            )
        out = torch.cat(outs).view(tiles, heads.key, heads.shared, TILE, heads.size).permute(0, 3, 1, 2, 4)
        return out.reshape(tiles * TILE, heads.query, heads.size)[before : before + count]


def keys_needed(position: int, count: int) -> int:
    """How many key rows a span must gather: to the end of its last tile."""
    return -(-(position + count) // TILE) * TILE


@lru_cache(maxsize=4096)
def _later(count: int, rows: int, keys: int, shared: int) -> Tensor:
    """Minus infinity where one of `count` rows (the last repeated up to `rows`) would see a key behind it."""
    seen = torch.arange(rows).clamp_(max=count - 1)
    mask = torch.zeros(rows, keys).masked_fill_(torch.arange(keys)[None] > seen[:, None], float("-inf"))
    return mask.repeat_interleave(shared, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost no memory until written: numpy asks the system for zero pages, torch would fill them."""
    kind = {torch.float32: np.float32, torch.float16: np.float16}[dtype]
    return torch.from_numpy(np.zeros(shape, kind))


def _least_rows(heads: Heads) -> int | None:
    """From how many decode rows on every count gives a row the same bits, for any number of masked tiles behind."""
    generator = torch.Generator().manual_seed(2)
    kv = torch.randn(5 * TILE, 2, heads.key, heads.size, generator=generator)
    query = torch.randn(heads.key, 1, heads.shared, heads.size, generator=generator)

    def row(count: int, tiles: int) -> Tensor:
        folded = query.expand(-1, count, -1, -1).reshape(heads.key, -1, heads.size)
        scores = torch.bmm(folded, kv[: tiles * TILE, 0].permute(1, 2, 0))
        scores[:, :, 91:] = float("-inf")
        out = torch.bmm(torch.softmax(scores, -1), kv[: tiles * TILE, 1].transpose(0, 1))
        return out.view(heads.key, count, -1)

    want, least = row(_MOST_ROWS, 2)[:, :1], None
    for count in range(_MOST_ROWS, 0, -1):
        if not all(bool((row(count, tiles) == want).all()) for tiles in (2, 3, 5)):
            break
        least = count
    return least
