"""What a later call will read from a cache: the longest prefix that was seen and has not expired."""
from __future__ import annotations

from gateway.prefix.chain import Chain
from gateway.prefix.index import PrefixIndex
from tests.prefix.test_chain import of

TURN = [b"system" * 10, b"question", b"answer" * 10, b"next"]


def learnt(ttl_s: float = 300.0) -> tuple[PrefixIndex, Chain]:
    """An index that has seen the first three parts answered with 1,000 prompt tokens at time 0."""
    index, seen = PrefixIndex(), of(TURN[:3])
    index.learn("pool", seen, 1_000, 0, ttl_s)
    return index, seen


def test_the_next_turn_reads_all_of_the_last_one() -> None:
    index, seen = learnt()
    assert index.predict("pool", of(TURN), 1) == index.predict("pool", seen, 1) == 1_000


def test_another_question_reads_the_part_that_is_the_same() -> None:
    """Its share is reckoned by bytes."""
    index, _ = learnt()
    assert index.predict("pool", of([TURN[0], b"other"]), 1) == 1_000 * 60 // 128


def test_nothing_is_foreseen_for_the_unknown() -> None:
    """Another pool, another beginning, another team, no prompt at all."""
    index, _ = learnt()
    assert index.predict("other", of(TURN), 1) == 0
    assert index.predict("pool", of([b"x", *TURN]), 1) == 0
    assert index.predict("pool", of(TURN, domain="other"), 1) == 0
    assert index.predict("pool", of([]), 1) == 0


def test_a_prefix_expires_and_is_renewed_by_use() -> None:
    index, seen = learnt(ttl_s=10)
    assert index.predict("pool", seen, 9_999_999) == 1_000
    assert index.predict("pool", seen, 10_000_000) == 0
    index.learn("pool", of(TURN), 1_200, 9_000_000, 10)
    assert index.predict("pool", seen, 15_000_000) > 0


def test_an_answer_without_a_count_teaches_nothing() -> None:
    index = PrefixIndex()
    index.learn("pool", of(TURN), 0, 0, 300)
    index.learn("pool", of([]), 100, 0, 300)
    assert len(index) == 0


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    index = PrefixIndex(max_prefixes=10)
    for n in range(100):
        index.learn("pool", of([b"%d" % n]), 5, 0, 300)
    assert len(index) == 10
    assert index.predict("pool", of([b"99"]), 1) == 5
    assert index.predict("pool", of([b"0"]), 1) == 0
