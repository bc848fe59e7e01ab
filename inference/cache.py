"""Where keys and values are kept: blocks of all layers in one of four number forms.

`fp32`, `fp16` and `bf16` are what they say; `int8` keeps a half-precision scale for each 16 neighbours in a row of a head,
which nearly halves the cache again. `python -m benchmarks.kv_cache` measures what each form costs in answers and in memory.

Block 0 is the null block: it pads tables and takes the writes of padding rows; what it holds is always masked.
"""

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

KV_FORMS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
NULL_BLOCK = 0
_LARGEST, _GROUP = 127, 16

_LEAST_SCALE = 6e-5  # the least that half precision keeps whole


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


class KVCache:
    """Keys and values in blocks, [layers, 2 * key heads, block, offset, size]; a layer's keys come before its values.

    Memory is taken from the system only as blocks are first used.
    """

    def __init__(self, layers: int, blocks: int, block_size: int, heads: Heads, dtype: torch.dtype) -> None:
        shape = (layers, 2 * heads.key, blocks + 1, block_size, heads.size)  # one more: the null block
        self.dtype, self.block_size, self.heads, self.blocks = dtype, block_size, heads, blocks
        self.rows = _zeros(shape, dtype)
        self._group = math.gcd(heads.size, _GROUP)
        scales = (*shape[:-1], heads.size // self._group)
        self.scales = _zeros(scales, torch.float16) if dtype is torch.int8 else None
        self.layers = self.rows.unbind()
        self._sides = torch.arange(2 * heads.key)[:, None] * (blocks + 1)

    @property
    def bytes_per_token(self) -> int:
        """What one position costs over all layers."""
        row = self.heads.size * self.dtype.itemsize
        if self.scales is not None:
            row += self.scales.shape[-1] * self.scales.itemsize
        return self.rows.shape[0] * 2 * self.heads.key * row

    @property
    def block_bytes(self) -> int:
        """What one block costs over all layers."""
        return self.bytes_per_token * self.block_size

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Store [rows, keys then values, size] at slots (block * block size + offset)."""
        pool, rows = self.layers[layer], rows.transpose(0, 1)
        if self.scales is not None:
            groups = rows.reshape(*rows.shape[:-1], -1, self._group)
            scales = groups.abs().amax(-1).div_(_LARGEST).clamp_(min=_LEAST_SCALE).half()
            rows = (groups / scales[..., None]).round_().clamp_(-_LARGEST, _LARGEST).flatten(-2)
            self.scales[layer].view(pool.shape[0], -1, scales.shape[-1]).index_copy_(1, slots, scales)
        pool.view(pool.shape[0], -1, pool.shape[3]).index_copy_(1, slots, rows.to(self.dtype))

    def places(self, tables: Tensor) -> Tensor:
        """Where the blocks of tables [sequences, blocks] lie in a layer, for `gather`."""
        return (self._sides + tables.reshape(1, -1)).view(-1)

    def gather(self, layer: int, places: Tensor, sequences: int = 1) -> tuple[Tensor, Tensor]:
        """Keys and values, each [key heads * sequences, tokens, size] in float32, a head's sequences side by side."""
        found = self.layers[layer].view(-1, self.block_size * self.heads.size).index_select(0, places).float()
        if self.scales is not None:
            scales = self.scales[layer].flatten(0, 1).flatten(1).index_select(0, places)
            found.view(-1, self._group).mul_(scales.view(-1, 1))
        keys, values = found.view(2, self.heads.key * sequences, -1, self.heads.size)
        return keys, values

    def read_block(self, block: int) -> Tensor:
        """The bytes of a block over all layers, for `write_block`."""
        parts = [self.rows[:, :, block]] if self.scales is None else [self.rows[:, :, block], self.scales[:, :, block]]
        return torch.cat([part.contiguous().view(torch.uint8).view(-1) for part in parts])

    def write_block(self, block: int, data: Tensor) -> None:
        """Put back what `read_block` gave, perhaps as another block."""
        rows = self.rows[:, :, block]
        size = rows.numel() * rows.itemsize
        rows.copy_(data[:size].view(self.dtype).view(rows.shape))
        if self.scales is not None:
            scales = self.scales[:, :, block]
            scales.copy_(data[size:].view(scales.dtype).view(scales.shape))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost no memory until written, in small pages: a block lies in many places, and to clear a huge page at each
    of them stalls a step for half a second."""
    room = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            room.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(room, dtype=dtype, count=math.prod(shape)).view(shape)
