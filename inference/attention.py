"""Attention over paged keys and values (`cache`) on the CPU, in two ways.

Rows that decode or verify use two plain products, many sequences in one; rows of a prompt use torch's fused attention
in tiles of 64 rows that lie on a fixed grid of positions. Both are shaped so that a row's bits depend on its position
and on what it sees, never on how many rows are computed with it, where a chunk began, or what came from the cache.

Keys are gathered in blocks of at most `most_keys`, on a fixed grid too, and the blocks' outcomes are weighed by their
sums of exponentials: memory for a layer stays bounded however long the context is.
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
_LEAST = -1e30
_MOST_ROWS = 17
MOST_KEYS = 16_384  # gathered at once, of one sequence or of a group that decodes together


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
    places: list[Tensor]
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Prefill:
    rows: slice
    position: int
    places: list[Tensor]


Plan = list[_Decode | _Prefill]


class Attention:
    """Attends spans over a cache. `exact` says whether decode rows came out the same in every company."""

    def __init__(self, heads: Heads, context: int, most_keys: int = MOST_KEYS) -> None:
        self._heads = heads
        self._most = min(most_keys, _tiles(context) * TILE)
        triangle = torch.full((TILE, TILE), float("-inf")).triu(1).repeat(heads.shared, 1)
        self._bias = F.pad(triangle, (self._most, 0))
        least = _least_rows(heads)
        self.exact = least is not None
        self._least_rows = least or 1

    def plan(self, spans: Sequence[Span], cache: KVCache) -> Plan:
        """What every layer of a step will do, worked out once."""
        groups: dict[tuple[int, bool, bool], list[Span]] = defaultdict(list)
        plan: Plan = []
        for span in spans:
            if span.decode:
                tiles = _tiles(span.position + span.count)
                groups[tiles.bit_length(), span.count > 1, tiles * TILE > self._most].append(span)
            else:
                places = self._places([span], _tiles(span.position + span.count) * TILE, cache)
                plan.append(_Prefill(slice(span.row, span.row + span.count), span.position, places))
        for group in groups.values():
            keys = max(_tiles(span.position + span.count) for span in group) * TILE
            most = max(1, MOST_KEYS // keys)
            plan += [self._together(group[at : at + most], keys, cache) for at in range(0, len(group), most)]
        return plan

    def __call__(self, layer: int, q: Tensor, cache: KVCache, plan: Plan) -> Tensor:
        """Scaled queries [rows, query heads, size] -> [rows, query heads * size]; rows outside all spans are zero."""
        out = q.new_zeros(q.shape[0], self._heads.query * self._heads.size)
        for part in plan:
            if isinstance(part, _Decode):
                if isinstance(part.rows, slice):
                    out[part.rows] = self._decode(layer, q[part.rows], part, cache)
                else:
                    out.index_copy_(0, part.rows, self._decode(layer, q.index_select(0, part.rows), part, cache))
            else:
                out[part.rows] = self._prefill(layer, q[part.rows], part, cache)
        return out

    def _places(self, spans: Sequence[Span], keys: int, cache: KVCache) -> list[Tensor]:
        """Where the spans' first keys lie, for one `gather` after the other."""
        tables, step = _tables(spans, keys // cache.block_size), self._most // cache.block_size
        return [cache.places(tables[:, at : at + step]) for at in range(0, tables.shape[1], step)]

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
            self._places(spans, keys, cache),
            mask.repeat(self._heads.key, 1, 1),
        )

    def _decode(self, layer: int, q: Tensor, part: _Decode, cache: KVCache) -> Tensor:
        heads = self._heads
        q = q.view(part.sequences, part.count, heads.key, heads.shared, heads.size)
        if part.padding:
            q = torch.cat((q, q[:, -1:].expand(-1, part.padding, -1, -1, -1)), 1)
        q = q.permute(2, 0, 1, 3, 4).reshape(heads.key * part.sequences, -1, heads.size)
        if len(part.places) == 1:
            keys, values = cache.gather(layer, part.places[0], part.sequences)
            out = torch.bmm(torch.baddbmm(part.mask, q, keys.transpose(1, 2)).softmax(-1), values)
        else:
            out = self._decode_long(layer, q, part, cache)
        out = out.view(heads.key, part.sequences, -1, heads.shared, heads.size)
        return out[:, :, : part.count].permute(1, 2, 0, 3, 4).reshape(part.sequences * part.count, -1)

    def _decode_long(self, layer: int, q: Tensor, part: _Decode, cache: KVCache) -> Tensor:
        """Block after block: what was weighed before shrinks when a larger score comes. A wholly masked block adds 0."""
        out, total, top = torch.zeros_like(q), q.new_zeros(*q.shape[:2], 1), q.new_full((*q.shape[:2], 1), _LEAST)
        for mask, places in zip(torch.split(part.mask, self._most, -1), part.places, strict=True):
            keys, values = cache.gather(layer, places, part.sequences)
            scores = torch.baddbmm(mask, q, keys.transpose(1, 2))
            higher = torch.maximum(top, scores.amax(-1, True))
            scores, shrink, top = (scores - higher).exp_(), (top - higher).exp_(), higher
            out = out.mul_(shrink).add_(torch.bmm(scores, values))
            total = total.mul_(shrink).add_(scores.sum(-1, True))
        return out.div_(total)

    def _prefill(self, layer: int, q: Tensor, part: _Prefill, cache: KVCache) -> Tensor:
        """Tiles of rows from `position` on, each over the blocks of keys up to its end; what lies behind a row is masked."""
        count, heads = q.shape[0], self._heads
        first = part.position // TILE * TILE
        before, tiles = part.position - first, _tiles(part.position + count - first)
        q = F.pad(q, (0, 0, 0, 0, before, tiles * TILE - before - count))
        q = q.view(tiles, TILE, heads.key, heads.shared, heads.size).permute(0, 2, 3, 1, 4)
        q = q.reshape(tiles, heads.key, heads.shared * TILE, heads.size)
        found: list[tuple[Tensor, Tensor] | None] = [None] * tiles
        for at, places in enumerate(part.places):
            keys, values = (side[None] for side in cache.gather(layer, places))
            for tile in range(tiles):
                end = first + (tile + 1) * TILE - at * self._most
                if end > 0:
                    found[tile] = _weighed(found[tile], self._tile(q[tile : tile + 1], keys, values, end))
        out = torch.cat([outcome[0] for outcome in found if outcome is not None])
        out = out.view(tiles, heads.key, heads.shared, TILE, heads.size).permute(0, 3, 1, 2, 4)
        return out.reshape(tiles * TILE, -1)[before : before + count]

    def _tile(self, q: Tensor, keys: Tensor, values: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """What a tile that ends at key `end` of this block makes of it, and the logarithm of its sum of exponentials."""
        seen = min(end, self._most)
        bias = self._bias[:, self._bias.shape[1] - end :] if end <= self._most else self._bias[:, :seen]
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        outcome: tuple[Tensor, Tensor] = attend(q, keys[:, :, :seen], values[:, :, :seen], attn_mask=bias, scale=1.0)
        return outcome


def _weighed(one: tuple[Tensor, Tensor] | None, other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The outcome over the keys of both."""
    if one is None:
        return other
    total = torch.logaddexp(one[1], other[1])
    shares = ((log - total).exp()[..., None] for _, log in (one, other))
    return one[0] * next(shares) + other[0] * next(shares), total


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
