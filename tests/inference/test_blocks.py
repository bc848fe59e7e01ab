"""The pool: nothing is lost, only equal prefixes meet, and what is evicted is nobody's parent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.blocks import BLOCK, AllBlocksCleared, BlockPool, BlockRemoved, BlockStored


def _tokens(*blocks: int) -> list[list[int]]:
    return [[block] * BLOCK for block in blocks]


def _hold(pool: BlockPool, salt: str, content: list[list[int]]) -> tuple[list[int], int] | None:
    """Do as the scheduler does: match, take the rest, publish. Gives the table and how many blocks were hits."""
    chain, table = pool.chain(salt), []
    for tokens in content:
        block = pool.match(chain, tokens)
        if block is None:
            break
        table.append(block)
    hits = len(table)
    rest = pool.take(len(content) - hits)
    if rest is None:
        pool.release(table)
        return None
    table += rest
    for index in range(hits, len(content)):
        table[index] = pool.publish(chain, table[index], content[index])
    return table, hits


def _check(pool: BlockPool, tables: list[list[int]]) -> None:
    counts = pool.counts()
    assert counts.free + counts.cached + counts.held == pool.blocks
    assert sum(pool.references(block) for block in range(1, pool.blocks + 1)) == sum(map(len, tables))
    cached = {entry.id for entry in pool._all()}
    assert len(cached) == len(list(pool._all())) == len(pool.cached_hashes()), "nothing lies in both tiers"
    for entry in pool._entries.values():
        assert isinstance(entry.parent, str) or entry.parent in cached, "a child outlived its parent"


@settings(max_examples=150, deadline=None)
@given(st.integers(4, 24), st.randoms(use_true_random=False), st.booleans())
def test_nothing_is_lost_under_any_use(blocks: int, chance: random.Random, collide: bool) -> None:
    """Random holders over a small pool, honest hashes or colliding ones: counts, references, parents and events agree."""
    pool = BlockPool(blocks, "m", (lambda data: data[-1:]) if collide else BlockPool(1).digest)
    tables: list[list[int]] = []
    seen: dict[bytes, tuple[int, ...]] = {}
    for _ in range(60):
        held, now = {pool._entries[b].block_hash for table in tables for b in table if b in pool._entries}, len(pool.events)
        if tables and chance.random() < 0.45:
            pool.release(tables.pop(chance.randrange(len(tables))))
        elif chance.random() < 0.03:
            pool.clear()
            assert pool.counts().held == len({block for table in tables for block in table})
            for table in tables:
                pool.release(table)
            tables.clear()
        else:
            content = _tokens(*(chance.randrange(3) for _ in range(chance.randrange(1, 6))))
            if (held_now := _hold(pool, chance.choice("ab"), content)) is not None:
                tables.append(held_now[0])
        _check(pool, tables)
        evicted = {event.block_hash for event in list(pool.events)[now:] if isinstance(event, BlockRemoved)}
        assert not held & evicted, "a block that somebody holds was evicted"
    for sequence, event in enumerate(pool.events):
        assert event.sequence == sequence
        match event:
            case BlockStored(block_hash=block_hash, tokens=tokens):
                seen[block_hash] = tokens
            case BlockRemoved(block_hash=block_hash):
                del seen[block_hash]
            case AllBlocksCleared():
                seen.clear()
    assert seen == pool.cached_hashes()
    for table in tables:
        pool.release(table)
    assert pool.counts().held == 0


@pytest.mark.parametrize(
    ("salt", "identity", "blocks", "hits"),
    [
        pytest.param("s", "m", (1, 2, 3), 3, id="equal"),
        pytest.param("s", "m", (1, 2, 4), 2, id="equal but the last"),
        pytest.param("s", "m", (9, 2, 3), 0, id="equal but the first"),
        pytest.param("t", "m", (1, 2, 3), 0, id="another salt"),
        pytest.param("", "m", (1, 2, 3), 0, id="no salt"),
    ],
)
def test_only_equal_prefixes_meet(salt: str, identity: str, blocks: tuple[int, ...], hits: int) -> None:
    """Blocks are shared exactly as far as salt and all tokens are equal."""
    pool = BlockPool(16, identity)
    first = _hold(pool, "s", _tokens(1, 2, 3))
    assert first is not None
    pool.release(first[0])
    second = _hold(pool, salt, _tokens(*blocks))
    assert second is not None
    assert second[1] == hits
    assert second[0][:hits] == first[0][:hits]


def test_another_model_has_other_hashes() -> None:
    """The same tokens under another identity are other blocks."""
    assert BlockPool(1, "a").chain("").block_hash != BlockPool(1, "b").chain("").block_hash
    assert BlockPool(1, "ab").chain("c").block_hash != BlockPool(1, "a").chain("bc").block_hash


def test_a_collision_is_a_miss() -> None:
    """With a hash that always collides nobody gets another's tokens, salt or ancestors."""
    pool = BlockPool(16, "m", lambda data: b"same")
    assert _hold(pool, "s", _tokens(1, 2)) is not None
    for salt, blocks in (("t", (1,)), ("s", (2,)), ("s", (2, 2))):
        held = _hold(pool, salt, _tokens(*blocks))
        assert held is not None
        assert held[1] == 0


def test_tails_go_before_heads_and_old_before_new() -> None:
    """The victim is what was freed longest ago, and of one request its last block."""
    pool = BlockPool(4, "m")
    for blocks in ((1, 2), (3, 4)):
        held = _hold(pool, "", _tokens(*blocks))
        assert held is not None
        pool.release(held[0])
    for _ in range(4):
        assert pool.take(1) is not None
    assert [event.block_hash for event in pool.events if isinstance(event, BlockRemoved)] == [
        stored.block_hash
        for stored in (pool.events[1], pool.events[0], pool.events[3], pool.events[2])
        if isinstance(stored, BlockStored)
    ]
    assert pool.take(1) is None


def test_who_fills_the_cache_loses_his_own_blocks_first() -> None:
    """Where blocks lack, a salt above its share pays; alone it may fill the whole pool."""
    pool = BlockPool(20, share=0.5)
    for index in range(6):
        pool.release(_hold(pool, "b", _tokens(100 + index))[0])  # type: ignore[index]
    for index in range(40):
        pool.release(_hold(pool, "a", _tokens(index))[0])  # type: ignore[index]
    assert [_hold(pool, "b", _tokens(100 + index))[1] for index in range(6)] == [1] * 6  # type: ignore[index]
    alone = BlockPool(20, share=0.5)
    for index in range(20):
        alone.release(_hold(alone, "a", _tokens(index))[0])  # type: ignore[index]
    assert alone.counts().cached == 20


def test_a_listener_that_comes_late_gets_the_content() -> None:
    """A snapshot, or the events since a number that is still known, lead to what the pool holds."""
    pool = BlockPool(8)
    pool.release(_hold(pool, "a", _tokens(1, 2, 3))[0])  # type: ignore[index]
    snapshot = pool.snapshot()
    assert {e.block_hash for e in snapshot if isinstance(e, BlockStored)} == set(pool.cached_hashes())
    known = {pool.chain("a").block_hash}
    for event in snapshot[1:]:
        assert isinstance(event, BlockStored)
        assert event.parent_hash in known, "parents come first"
        known.add(event.block_hash)
    assert pool.since(snapshot[-1].sequence + 1) == []
    pool.release(_hold(pool, "a", _tokens(7))[0])  # type: ignore[index]
    assert [type(event).__name__ for event in pool.since(snapshot[-1].sequence + 1) or ()] == ["BlockStored"]
    assert pool.since(99) is None
    pool.events.clear()
    assert pool.since(0) is None
