"""Attention over paged keys and values (`cache`) on the CPU, in two ways.

Rows that decode or verify use two plain products, many sequences in one; rows of a prompt use torch's fused attention
in tiles of 64 rows that lie on a fixed grid of positions. Both are shaped so that a row's bits depend on its position
and on what it sees, never on how many rows are computed with it, where a chunk began, or what came from the cache.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.cache import NULL_BLOCK, Heads, KVCache

TILE = 64
_MOST_ROWS = 17
_MOST_GATHERED = 16_384  # keys gathered for one group of decoding sequences: bounds the memory that a layer needs


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring rows of one sequence: `count` from `row`, the first at `position`; `table` are its blocks."""

    row: int
    count: int
    position: int
    table: Sequence[int]
    decode: bool


@dataclass(frozen=True, slots=True)
class _Decode:
    """Sequences that decode together: `rows` of the step, how many of each, and `padding` more that repeat the last."""

    rows: Tensor | slice
    sequences: int
    count: int
    padding: int
    places: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Prefill:
    rows: slice
    position: int
    places: Tensor


Plan = list[_Decode | _Prefill]


class Attention:
    """Attends spans over a cache. `exact` says whether decode rows came out the same in every company."""

    def __init__(self, heads: Heads, context: int) -> None:
        self._heads = heads
        self._context = -(-context // TILE) * TILE
        triangle = torch.full((TILE, TILE), float("-inf")).triu(1).repeat(heads.shared, 1)
        self._bias = F.pad(triangle, (self._context, 0))
        least = _least_rows(heads)
        self.exact = least is not None
        self._least_rows = least or 1

    def plan(self, spans: Sequence[Span], cache: KVCache) -> Plan:
        """What every layer of a step will do, worked out once."""
        groups: dict[tuple[int, bool], list[Span]] = defaultdict(list)
        plan: Plan = []
        for span in spans:
            if span.decode:
                tiles = _tiles(span.position + span.count)
                groups[tiles.bit_length(), span.count > 1].append(span)
            else:
                blocks = _tables([span], _tiles(span.position + span.count) * TILE // cache.block_size)
                plan.append(_Prefill(slice(span.row, span.row + span.count), span.position, cache.places(blocks)))
        for group in groups.values():
            keys = max(_tiles(span.position + span.count) for span in group) * TILE
            most = max(1, _MOST_GATHERED // keys)
            plan += [self._together(group[at : at + most], keys, cache) for at in range(0, len(group), most)]
        return plan

    def __call__(self, layer: int, q: Tensor, cache: KVCache, plan: Plan) -> Tensor:
        """Scaled queries [rows, query heads, size] -> [rows, query heads * size]; rows outside all spans are zero."""
        out = q.new_zeros(q.shape[0], self._heads.query * self._heads.size)
        for part in plan:
            if isinstance(part, _Decode):
                keys, values = cache.gather(layer, part.places, part.sequences)
                if isinstance(part.rows, slice):
                    out[part.rows] = self._decode(q[part.rows], part, keys, values)
                else:
                    out.index_copy_(0, part.rows, self._decode(q.index_select(0, part.rows), part, keys, values))
            else:
                keys, values = cache.gather(layer, part.places)
                out[part.rows] = self._prefill(q[part.rows], part.position, keys[None], values[None])
        return out

    def _together(self, spans: Sequence[Span], keys: int, cache: KVCache) -> _Decode:
        """One product for several sequences: rows are repeated up to one count, tables padded to one length."""
        count = max(span.count for span in spans)
        padding = max(0, self._least_rows - count)
        rows = [span.row + min(index, span.count - 1) for span in spans for index in range(count)]
        together = slice(rows[0], rows[-1] + 1)
        last = [[span.position + min(index, span.count - 1) for index in range(count + padding)] for span in spans]
        hidden = torch.arange(keys) > torch.tensor(last)[..., None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).repeat_interleave(self._heads.shared, 1)
        return _Decode(
            together if rows == list(range(together.start, together.stop)) else torch.tensor(rows),
            len(spans),
            count,
            padding,
            cache.places(_tables(spans, keys // cache.block_size)),
            mask.repeat(self._heads.key, 1, 1),
        )

    def _decode(self, q: Tensor, part: _Decode, keys: Tensor, values: Tensor) -> Tensor:
        heads = self._heads
        q = q.view(part.sequences, part.count, heads.key, heads.shared, heads.size)
        if part.padding:
            q = torch.cat((q, q[:, -1:].expand(-1, part.padding, -1, -1, -1)), 1)
        q = q.permute(2, 0, 1, 3, 4).reshape(keys.shape[0], -1, heads.size)
        weights = torch.baddbmm(part.mask, q, keys.transpose(1, 2)).softmax(-1)
        out = torch.bmm(weights, values).view(heads.key, part.sequences, -1, heads.shared, heads.size)
        return out[:, :, : part.count].permute(1, 2, 0, 3, 4).reshape(part.sequences * part.count, -1)

    def _prefill(self, q: Tensor, position: int, keys: Tensor, values: Tensor) -> Tensor:
        """Rows from `position` on; keys reach to the end of the last tile, what lies behind the rows is masked."""
        count, heads = q.shape[0], self._heads
        first = position // TILE * TILE
        tiles = -(-(position + count - first) // TILE)
        before = position - first
        q = F.pad(q, (0, 0, 0, 0, before, tiles * TILE - before - count))
        q = q.view(tiles, TILE, heads.key, heads.shared, heads.size).permute(0, 2, 3, 1, 4)
        q = q.reshape(tiles, heads.key, heads.shared * TILE, heads.size)
        outs = []
        for tile in range(tiles):
            end = first + (tile + 1) * TILE
            bias = self._bias[:, self._context + TILE - end :]
            seen, weighed = keys[:, :, :end], values[:, :, :end]
            outs.append(F.scaled_dot_product_attention(q[tile : tile + 1], seen, weighed, attn_mask=bias, scale=1.0))
        out = torch.cat(outs).view(tiles, heads.key, heads.shared, TILE, heads.size).permute(0, 3, 1, 2, 4)
        return out.reshape(tiles * TILE, -1)[before : before + count]


def _tiles(keys: int) -> int:
    return -(-keys // TILE)


def _tables(spans: Sequence[Span], blocks: int) -> Tensor:
    """The spans' block tables, cut or padded to one length."""
    tables = np.full((len(spans), blocks), NULL_BLOCK)
    for row, span in enumerate(spans):
        used = span.table[:blocks]
        tables[row, : len(used)] = used
    return torch.from_numpy(tables)


def _least_rows(heads: Heads) -> int | None:
    """From how many decode rows on every count gives a row the same bits, for any number of masked tiles behind.

    The row stands in every place of a group of sequences, so that company in the batch is tried too.
    """
    generator = torch.Generator().manual_seed(2)
    keys, values = torch.randn(2, heads.key, 5 * TILE, heads.size, generator=generator)
    query = torch.randn(heads.key, 1, heads.shared, heads.size, generator=generator)

    def rows(count: int, tiles: int, sequences: int) -> Tensor:
        mask = torch.zeros(1, 1, tiles * TILE)
        mask[..., 91:] = float("-inf")
        seen, weighed = (side[:, None, : tiles * TILE].repeat(1, sequences, 1, 1).flatten(0, 1) for side in (keys, values))
        q = query[:, None].expand(-1, sequences, count, -1, -1).reshape(len(seen), -1, heads.size)
        out = torch.bmm(torch.baddbmm(mask, q, seen.transpose(1, 2)).softmax(-1), weighed)
        return out.view(heads.key, sequences * count, -1)

    want, least = rows(_MOST_ROWS, 2, 1)[:, :1], None
    for count in range(_MOST_ROWS, 0, -1):
        if not all(bool((rows(count, tiles, many) == want).all()) for tiles in (2, 3, 5) for many in (1, 2, 7)):
            break
        least = count
    return least
