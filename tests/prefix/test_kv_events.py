"""An engine's own word on its cache is believed."""
from __future__ import annotations

from gateway.prefix.index import PrefixIndex
from gateway.prefix.kv_events import KvWatch
from tests.prefix.test_chain import of


def watched() -> tuple[PrefixIndex, KvWatch]:
    index = PrefixIndex()
    watch = KvWatch(index)
    for name in (b"old", b"new"):
        chain = of([name * 10, b"tail" * 10])
        index.learn("team", "pool", chain, 1_000, 0, 300)
        watch.learnt("team", "pool", chain, b"")
    return index, watch


def test_what_was_used_longest_ago_goes_first_and_its_tail_before_its_head() -> None:
    index, watch = watched()
    old, new = of([b"old" * 10, b"tail" * 10]), of([b"new" * 10, b"tail" * 10])
    watch.told("pool", 300)
    assert index.predict("team", "pool", old, 1) == 700
    watch.told("pool", 300)
    assert 0 < index.predict("team", "pool", old, 1) < 500
    watch.told("pool", 450)
    assert index.predict("team", "pool", old, 1) == 0
    assert index.predict("team", "pool", new, 1) == 950


def test_an_emptied_pool_holds_nothing() -> None:
    index, watch = watched()
    watch.told("pool", None)
    assert index.predict("team", "pool", of([b"new" * 10, b"tail" * 10]), 1) == 0
    watch.told("pool", 10_000)


def test_a_pool_that_nobody_knows_is_borne() -> None:
    index, watch = watched()
    watch.told("other", 10)
    assert index.predict("team", "pool", of([b"new" * 10, b"tail" * 10]), 1) == 1_000
