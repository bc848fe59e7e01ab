"""What a later call will read from a cache: the longest prefix that was seen and has not run out."""
from __future__ import annotations

import json
import sys
from typing import Any

from gateway import dialects
from gateway.prefix.chain import Chain, chain
from gateway.prefix.index import BYTES_AN_ENTRY, PrefixIndex
from tests.prefix.test_chain import of

TURN = [b"system" * 10, b"question", b"answer" * 10, b"next"]


def learnt(ttl_s: float = 300.0) -> tuple[PrefixIndex, Chain]:
    """An index that has seen the first three parts answered with 1,000 prompt tokens at time 0."""
    index, seen = PrefixIndex(), of(TURN[:3])
    index.learn("team", "pool", seen, 1_000, 0, ttl_s)
    return index, seen


def ask(index: PrefixIndex, chain: Chain, now_us: int = 1, pool: str = "pool", **more: Any) -> int:
    return index.predict("team", pool, chain, now_us, **more)


def test_the_next_turn_reads_all_of_the_last_one() -> None:
    index, seen = learnt()
    assert ask(index, of(TURN)) == ask(index, seen) == 1_000


def test_another_question_reads_the_part_that_is_the_same() -> None:
    """Its share is reckoned by bytes."""
    index, _ = learnt()
    assert ask(index, of([TURN[0], b"other"])) == 1_000 * 60 // 128


def test_a_cached_count_says_what_a_shared_part_really_has() -> None:
    """And stays, whatever later calls with more or less behind it read."""
    index, _ = learnt()
    index.learn("team", "pool", of([TURN[0], b"other"]), 600, 0, 300, cached=512)
    assert ask(index, of([TURN[0], b"third"])) == 512
    index.learn("team", "pool", of([TURN[0], b"third"]), 900, 0, 300, cached=640)
    assert ask(index, of([TURN[0], b"fourth"])) == 512
    assert ask(index, of(TURN)) == 1_000


def test_nothing_is_foreseen_for_the_unknown() -> None:
    """Another pool, another beginning, another domain, no prompt at all."""
    index, seen = learnt()
    assert ask(index, of(TURN), pool="other") == 0
    assert ask(index, of([b"x", *TURN])) == 0
    assert index.predict("other", "pool", seen, 1) == 0
    assert ask(index, of(TURN, domain="other")) == 0
    assert ask(index, of([])) == 0


def test_a_prefix_expires_and_is_renewed_by_use() -> None:
    index, seen = learnt(ttl_s=10)
    assert ask(index, seen, 9_999_999) == 1_000
    assert ask(index, seen, 10_000_000) == 0
    index.learn("team", "pool", of(TURN), 1_200, 9_000_000, 10)
    assert ask(index, seen, 15_000_000) > 0


def test_a_beginning_outlives_what_went_on_from_it() -> None:
    """Each call renews what it uses, and only that."""
    index, seen = learnt(ttl_s=10)
    index.learn("team", "pool", of([TURN[0], b"other"]), 600, 9_000_000, 10, cached=500)
    assert ask(index, seen, 12_000_000) == 500
    found = index.find("team", "pool", seen)
    assert (found.depth, found.tokens, found.until_s) == (3, 1_000, 10)


def test_an_engine_of_ones_own_keeps_its_answers_too() -> None:
    """If the next turn quotes the answer as it was given."""
    index, seen = PrefixIndex(), of(TURN[:2])
    index.learn("team", "pool", seen, 100, 0, 300, answer=(b"the answer", 20))
    assert ask(index, of(TURN), said=lambda n: b"the answer" if n == 2 else None) == 120
    assert ask(index, of(TURN), said=lambda n: b"another") == ask(index, of(TURN), said=lambda n: None) == 100


def test_an_answer_without_a_count_teaches_nothing() -> None:
    index = PrefixIndex()
    index.learn("team", "pool", of(TURN), 0, 0, 300)
    index.learn("team", "pool", of([]), 100, 0, 300)
    assert len(index) == 0


def test_a_pool_that_was_emptied_holds_nothing() -> None:
    index, seen = learnt()
    index.learn("team", "other", seen, 1_000, 0, 300)
    index.cleared("pool")
    assert ask(index, seen) == 0
    assert ask(index, seen, pool="other") == 1_000


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    index = PrefixIndex(max_bytes=100 * BYTES_AN_ENTRY)
    for n in range(1_000):
        index.learn("team", "pool", of([b"%d" % n]), 5, 0, 300)
        assert len(index) <= 100
    assert ask(index, of([b"999"])) == 5
    assert ask(index, of([b"0"])) == 0


def test_an_entry_is_as_small_as_it_is_said_to_be() -> None:
    """Keys and values are numbers of at most 64 bits; the dictionary has room to spare just after it has grown."""
    index = PrefixIndex()
    for n in range(20_000):
        index.learn("team", "pool", of([b"%d" % n]), 100_000, 1_800_000_000_000_000, 300)
    held = index._held
    numbers = sum(sys.getsizeof(key) + sys.getsizeof(value) for key, value in held.items())
    assert (sys.getsizeof(held) + numbers) / len(held) <= BYTES_AN_ENTRY


def long_talk(system: str, said: str) -> tuple[bytes, Chain]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return body, chain("team", "m", dialects.read("openai_chat", body).parts)


SHARED = "You are the keeper of the toll house. Be brief, be kind, and never let anybody pass for nothing. "


def test_an_engine_of_ones_own_shares_what_two_prompts_begin_with() -> None:
    """Wherever it ends, in the first parts; with a provider only whole parts count."""
    index = PrefixIndex()
    body, links = long_talk(SHARED + "One. " * 50, "hi")
    index.learn("team", "own", links, len(body) // 4, 0, 300, body=body)
    index.learn("team", "provider", links, len(body) // 4, 0, 300)
    other, unlike = long_talk(SHARED + "Two. " * 50, "hi")
    shared = len(SHARED) // 4
    assert abs(index.predict("team", "own", unlike, 1, None, other) - shared) < 16
    assert index.predict("team", "provider", unlike, 1) == 0
    assert index.predict("other", "own", unlike, 1, None, other) == 0
    assert index.predict("team", "own", unlike, 301_000_000, None, other) == 0


def test_an_engines_block_is_learnt_from_its_counts() -> None:
    """Predictions are multiples of it."""
    index = PrefixIndex()
    body, links = long_talk(SHARED, "hi")
    index.learn("team", "own", links, 103, 0, 300, cached=64, body=body)
    index.learn("team", "own", links, 103, 0, 300, cached=96, body=body)
    assert index.predict("team", "own", links, 1, None, body) == 96
