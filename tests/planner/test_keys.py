"""`prompt_cache_key`: one for an app while it is slow, several when it is fast, and one for all of a conversation."""
from __future__ import annotations

from gateway.planner.keys import PER_MINUTE, CacheKeys

MINUTE_US = 60_000_000


def test_a_slow_app_has_one_key() -> None:
    keys = CacheKeys()
    assert len({keys.key(b"app", b"session %d" % n, n * MINUTE_US // 5) for n in range(100)}) == 1


def test_a_fast_app_has_enough_keys_that_each_stays_under_its_rate() -> None:
    keys = CacheKeys()
    for n in range(400):
        keys.key(b"app", b"old %d" % n, n * MINUTE_US // 100)
    made = [keys.key(b"app", b"new %d" % n, 4 * MINUTE_US + n * MINUTE_US // 100) for n in range(100)]
    assert 100 / len(set(made)) <= 2 * PER_MINUTE


def test_a_conversation_keeps_the_key_it_began_with() -> None:
    keys = CacheKeys()
    first = keys.key(b"app", b"mine", 0)
    for n in range(1_000):
        keys.key(b"app", b"other %d" % n, n * 10_000)
    assert keys.key(b"app", b"mine", 10_000_000) == first


def test_apps_have_keys_of_their_own() -> None:
    keys = CacheKeys()
    assert keys.key(b"one", b"s", 0) != keys.key(b"two", b"t", 0)


def test_it_is_bounded() -> None:
    keys = CacheKeys(most=10)
    for n in range(100):
        keys.key(b"%d" % n, b"%d" % n, n)
    assert max(len(keys._keys), len(keys._rates)) <= 10
