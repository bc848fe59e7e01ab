"""Two tiers: whoever hits a block reads what was computed for exactly his salt and tokens, wherever it lay meanwhile."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.blocks import BLOCK, AllBlocksCleared, BlockPool, BlockRemoved, BlockStored
from inference.cache import Heads, KVCache
from inference.spill import DiskStore, HostStore, Spill

HEADS = Heads(1, 1, 2)


class _Rig:
    """A pool with a spill; what is computed into a block is a mark of its salt and of all tokens up to its end."""

    def __init__(self, blocks: int, slots: int, *, collide: bool = False, disk: bool = False) -> None:
        self.cache = KVCache(1, blocks, BLOCK, HEADS, torch.float32)
        size = self.cache.block_bytes
        self.spill = Spill(self.cache, DiskStore(slots, size) if disk else HostStore(slots, size))
        digest = (lambda data: data[-1:]) if collide else BlockPool(1).digest
        self.pool = BlockPool(blocks, "m", digest, lower=self.spill)
        self.tables: list[list[int]] = []

    def ask(self, salt: str, content: list[int]) -> int | None:
        """Match, compute the rest, publish; how many blocks were hits, or None where the pool is full."""
        chain, table = self.pool.chain(salt), []
        marks = [zlib.crc32(repr((salt, content[: n + 1])).encode()) % 2**20 for n in range(len(content))]
        for number, mark in zip(content, marks, strict=True):
            block = self.pool.match(chain, [number] * BLOCK)
            if block is None:
                break
            assert self._mark(block) == mark, "somebody else's keys"
            table.append(block)
        hits = len(table)
        if (rest := self.pool.take(len(content) - hits)) is None:
            self.pool.release(table)
            return None
        table += rest
        for at in range(hits, len(content)):
            slots = torch.arange(table[at] * BLOCK, (table[at] + 1) * BLOCK)
            self.cache.write(0, slots, torch.full((BLOCK, 2, 2), float(marks[at])))
            table[at] = self.pool.publish(chain, table[at], [content[at]] * BLOCK)
            assert self._mark(table[at]) == marks[at]
        self.tables.append(table)
        return hits

    def leave(self, which: int = -1) -> None:
        self.pool.release(self.tables.pop(which))

    def _mark(self, block: int) -> float:
        return float(self.cache.gather(0, self.cache.places(torch.tensor([[block]])))[0][0, 0, 0])


@settings(max_examples=80, deadline=None)
@given(st.integers(4, 16), st.integers(1, 12), st.randoms(use_true_random=False), st.booleans())
def test_two_tiers_are_one_cache(blocks: int, slots: int, chance: random.Random, collide: bool) -> None:
    """Under any use, with honest hashes or colliding ones: right content, nothing lost, events tell what can be hit."""
    rig = _Rig(blocks, slots, collide=collide)
    pool = rig.pool
    for _ in range(40):
        if rig.tables and chance.random() < 0.5:
            rig.leave(chance.randrange(len(rig.tables)))
        elif chance.random() < 0.02:
            while rig.tables:
                rig.leave()
            pool.clear()
        else:
            rig.ask(chance.choice("ab"), [chance.randrange(3) for _ in range(chance.randrange(1, 6))])
        counts = pool.counts()
        assert counts.free + counts.cached + counts.held == blocks
        assert counts.held == len({block for table in rig.tables for block in table})
        assert sum(pool.references(block) for block in range(1, blocks + 1)) == sum(map(len, rig.tables))
    seen: dict[bytes, tuple[int, ...]] = {}
    for event in pool.events:
        match event:
            case BlockStored(block_hash=block_hash, tokens=tokens):
                seen[block_hash] = tokens
            case BlockRemoved(block_hash=block_hash):
                del seen[block_hash]
            case AllBlocksCleared():
                seen.clear()
    assert seen == pool.cached_hashes()
    known = {event.block_hash for event in pool.snapshot()[1:] if isinstance(event, BlockStored)}
    assert known == set(seen)


@pytest.mark.parametrize("disk", [True, False], ids=["disk", "host"])
def test_what_was_evicted_is_hit_again(disk: bool) -> None:
    """A prefix that others pushed out of the pool comes back whole, and only for its salt."""
    rig = _Rig(6, 20, disk=disk)
    rig.ask("a", [1, 2, 3])
    rig.leave()
    for n in range(4):
        rig.ask("b", [10 + n, 20 + n])
        rig.leave()
    assert rig.spill.stored >= 3
    assert rig.ask("c", [1, 2, 3]) == 0
    rig.leave()
    assert rig.ask("a", [1, 2, 3, 4]) == 3
    assert rig.spill.restored == 3
    assert not any(isinstance(event, BlockRemoved) for event in rig.pool.events)


def test_a_salt_cannot_flush_the_spill() -> None:
    """Who fills it loses his own first."""
    rig = _Rig(4, 10)
    for n in range(3):
        rig.ask("a", [n])
        rig.leave()
    for n in range(60):
        rig.ask("b", [n])
        rig.leave()
    assert [rig.ask("a", [n]) for n in range(3)] == [1] * 3


def test_a_disk_that_fails_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written or read back is told as removed, and computed anew."""
    rig = _Rig(2, 4, disk=True)
    rig.ask("a", [1, 2])
    rig.leave()
    rig.ask("a", [3, 4])
    rig.leave()
    monkeypatch.setattr("os.preadv", lambda *_: 0)
    assert rig.ask("a", [1, 2]) == 0
    rig.leave()
    monkeypatch.setattr("os.pwrite", lambda *_: 0)
    rig.ask("a", [5, 6])
    rig.leave()
    assert sum(isinstance(event, BlockRemoved) for event in rig.pool.events) > 1
    assert rig.ask("a", [1, 2]) == 0
