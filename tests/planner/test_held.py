"""What our marks wrote is known until it expires; reading starts its own lifetime again."""
from __future__ import annotations

from gateway.planner.held import Held

S = 1_000_000


def test_the_longest_prefix_that_has_not_expired_is_found() -> None:
    held = Held()
    held.store("p", b"a", 0, 3600)
    held.store("p", b"b", 0, 300)
    assert held.deepest("p", [b"a", b"b", b"c"], 299 * S) == 1
    assert held.deepest("p", [b"a", b"b", b"c"], 300 * S) == 0
    assert held.deepest("q", [b"a"], 0) == -1


def test_an_entry_keeps_the_lifetime_it_was_written_with() -> None:
    held = Held()
    held.store("p", b"a", 0, 3600)
    held.store("p", b"a", 100 * S, 300)
    assert held.has("p", b"a", 3699 * S)
    held.store("p", b"a", 4000 * S, 300)
    assert not held.has("p", b"a", 4300 * S)


def test_it_is_bounded_and_forgets() -> None:
    held = Held(most=3)
    for n in range(9):
        held.store("p", b"%d" % n, 0, 300)
    assert len(held) == 3
    held.forget("p", b"8")
    assert not held.has("p", b"8", 0)
