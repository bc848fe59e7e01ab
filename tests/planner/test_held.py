"""What our marks wrote is known until it expires; reading starts its own lifetime again."""
from __future__ import annotations

from gateway.planner.held import Held, Seen, Writing

S = 1_000_000


def test_the_longest_prefix_that_has_not_expired_is_found() -> None:
    held = Held()
    held.store("p", 1, 0, 3600)
    held.store("p", 2, 0, 300)
    assert held.deepest("p", [1, 2, 3], 299 * S) == 1
    assert held.deepest("p", [1, 2, 3], 300 * S) == 0
    assert held.deepest("q", [1], 0) == -1


def test_an_entry_keeps_the_lifetime_it_was_written_with() -> None:
    held = Held()
    held.store("p", 1, 0, 3600)
    held.store("p", 1, 100 * S, 300)
    assert held.has("p", 1, 3699 * S)
    held.store("p", 1, 4000 * S, 300)
    assert not held.has("p", 1, 4300 * S)


def test_it_is_bounded_and_forgets() -> None:
    held = Held(most=3)
    for n in range(9):
        held.store("p", n, 0, 300)
    assert len(held) == 3
    held.forget("p", 8)
    assert not held.has("p", 8, 0)


def test_where_an_earlier_prompt_parted_is_known() -> None:
    seen = Seen(most=6)
    assert seen.deepest([1, 2, 3]) == -1
    assert seen.deepest([1, 2, 4]) == 1
    assert seen.deepest([1, 2, 3, 5]) == 2
    for n in range(10, 30):
        seen.deepest([n])
    assert seen.deepest([1, 2]) == -1


def test_a_conversation_is_known_though_its_prompt_has_changed() -> None:
    """For as long as anything of it may be stored."""
    seen = Seen()
    came = [("a", 0), ("b", 0), ("a", 60), ("", 60), ("", 60), ("a", 50_000)]
    assert [seen.talk(session, at_s * 1_000_000) for session, at_s in came] == [False, False, True, False, False, False]


def test_what_others_are_writing_is_known_for_some_seconds() -> None:
    one, other = Writing(), Writing()
    one.tell([1], 0)
    one.fresh = {}
    one.tell([2, 3], 5 * S)
    other.take(one.fresh.items())
    assert [other.has(name, 14 * S) for name in (1, 2, 3)] == [False, True, True]
    assert not other.has(2, 15 * S)
    other.take([(4, 30 * S)])
    assert len(other) == 1
