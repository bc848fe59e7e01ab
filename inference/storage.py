"""Where keys and values are: the numbers (`cache`), who holds which block (`blocks`), what was evicted (`spill`)."""

from pathlib import Path

import torch

from inference.blocks import BLOCK, BlockPool
from inference.cache import KVCache
from inference.model import Model
from inference.spill import DiskStore, HostStore, Spill


class Storage:
    """Room for so many tokens of a model. `identity` names its weights: blocks of others never match."""

    def __init__(
        self, model: Model, tokens: int = 65_536, dtype: torch.dtype = torch.float16, *, identity: str = "",
        spill_mib: int = 0, spill_dir: Path | None = None,
    ) -> None:  # fmt: skip
        blocks = max(1, tokens // BLOCK)
        self.cache = model.cache(blocks, BLOCK, dtype)
        self.spill = _spill(self.cache, spill_mib, spill_dir)
        self.pool = BlockPool(blocks, f"{identity} {model.kind} {dtype}", lower=self.spill)

    @property
    def tokens(self) -> int:
        """How many there is room for."""
        return self.pool.blocks * BLOCK

    @property
    def bytes(self) -> int:
        """What the cache takes when it is full."""
        return self.cache.block_bytes * self.pool.blocks


def _spill(cache: KVCache, mib: int, folder: Path | None) -> Spill | None:
    slots = (mib << 20) // cache.block_bytes
    if not slots:
        return None
    on_gpu = cache.layers[0].is_cuda
    store = HostStore(slots, cache.block_bytes, pinned=True) if on_gpu else DiskStore(slots, cache.block_bytes, folder)
    return Spill(cache, store)
