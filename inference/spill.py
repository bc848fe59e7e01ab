"""Cold blocks beside the cache: what the pool evicts is kept on disk (or in host memory, for a GPU) and read back on a hit.

Reading a block costs less than computing one of its 16 tokens (`python -m benchmarks.kv_cache` measures it). Entries are
compared like the pool's own (`blocks`), so a collision is a miss, and what one salt spilled no other can find. The file
has no name once it is open: it goes with the process.
"""

import logging
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from inference.blocks import Entry
from inference.cache import KVCache
from inference.eviction import FairOrder

log = logging.getLogger(__name__)


class Store(Protocol):
    """Room for `slots` blocks of bytes."""

    slots: int

    def save(self, slot: int, data: Tensor) -> None: ...

    def load(self, slot: int) -> Tensor: ...


class DiskStore:
    """A file without a name in a folder. Raises `OSError` where it cannot be made, or is full."""

    def __init__(self, slots: int, block_bytes: int, folder: Path | None = None) -> None:
        self.slots, self._bytes = slots, block_bytes
        self._fd, name = tempfile.mkstemp(dir=folder, prefix="tollway-kv-")
        weakref.finalize(self, os.close, self._fd)
        os.unlink(name)

    def save(self, slot: int, data: Tensor) -> None:
        """Keep a block's bytes."""
        if os.pwrite(self._fd, data.numpy().data, slot * self._bytes) != self._bytes:
            raise OSError("the disk is full")

    def load(self, slot: int) -> Tensor:
        """They again."""
        data = torch.empty(self._bytes, dtype=torch.uint8)
        if os.preadv(self._fd, [data.numpy().data], slot * self._bytes) != self._bytes:
            raise OSError("the file of spilled blocks was cut")
        return data


class HostStore:
    """Host memory, pinned where a GPU copies from it."""

    def __init__(self, slots: int, block_bytes: int, *, pinned: bool = False) -> None:
        self.slots = slots
        self._data = torch.empty(slots, block_bytes, dtype=torch.uint8, pin_memory=pinned)

    def save(self, slot: int, data: Tensor) -> None:
        """Keep a block's bytes."""
        self._data[slot].copy_(data)

    def load(self, slot: int) -> Tensor:
        """They again, as a copy: the slot may be written before they are used."""
        return self._data[slot].clone()


class Spill:
    """What the pool evicted, newest last; a salt that has more than half of the slots loses its oldest first."""

    def __init__(self, cache: KVCache, store: Store) -> None:
        self._cache, self._store = cache, store
        self._entries: dict[bytes, tuple[Entry, int]] = {}
        self._order: FairOrder[bytes] = FairOrder(store.slots / 2)
        self._free = list(range(store.slots))
        self.stored = self.restored = 0
        """Blocks written and read back since the start."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def slots(self) -> int:
        """How many blocks there is room for."""
        return self._store.slots

    def find(self, block_hash: bytes) -> Entry | None:
        """The entry with this hash."""
        found = self._entries.get(block_hash)
        return None if found is None else found[0]

    def put(self, block: int, entry: Entry) -> list[Entry]:
        """Keep what the block holds; gives the entries that are gone now: one for which room was made, or this one if it
        cannot be written."""
        gone = []
        if not self._free:
            gone.append(self._entries[self._order.victim()][0])
            self.forget(gone[0].block_hash)
        slot = self._free.pop()
        try:
            self._store.save(slot, self._cache.read_block(block))
        except OSError as error:
            log.warning("a block is not spilled: %s", error)
            self._free.append(slot)
            return [*gone, entry]
        self._entries[entry.block_hash] = entry, slot
        self._order.add(entry.block_hash, entry.salt)
        self.stored += 1
        return gone

    def pop(self, block_hash: bytes) -> Tensor | None:
        """Forget an entry; gives its bytes, or None if they cannot be read."""
        slot = self._entries[block_hash][1]
        self.forget(block_hash)
        try:
            return self._store.load(slot)
        except OSError as error:
            log.warning("a spilled block is lost: %s", error)
            return None

    def place(self, block: int, content: Tensor) -> None:
        """Write bytes into a block of the cache."""
        self._cache.write_block(block, content)
        self.restored += 1

    def forget(self, block_hash: bytes) -> None:
        """Drop an entry unread."""
        entry, slot = self._entries.pop(block_hash)
        self._order.remove(block_hash, entry.salt)
        self._free.append(slot)

    def entries(self) -> Iterator[Entry]:
        """Newest first: a child is spilled before its parent."""
        return (self._entries[block_hash][0] for block_hash in reversed(self._order))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._order.clear()
        self._free = list(range(self._store.slots))
