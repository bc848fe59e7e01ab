"""What is rented pays for itself, and chance alone rents nothing."""
from __future__ import annotations

import pytest

from benchmarks.stored_prefixes import run
from gateway.planner.heads import Head, Heads, Rent, Stored

HOUR_US = 3_600_000_000
FLASH = Rent(0.675e-6, 0.5e-6, 0.75e-6)
HEAD = Head(7, 10_000, 1)


def came(heads: Heads, count: int, every_us: int, *, read: bool | None) -> int:
    now_us = 0
    for _ in range(count):
        now_us += every_us
        heads.came(HEAD, now_us, 300.0, read=read, latest=lambda: "latest")
    return now_us


def test_a_beginning_that_its_provider_keeps_by_itself_is_not_rented() -> None:
    heads = Heads()
    now_us = came(heads, 100, 60_000_000, read=True)
    assert heads.known[7].misses(now_us) == 0
    assert not heads.known[7].worth(FLASH, now_us, new=True)


def test_one_that_is_missed_every_ten_minutes_is_rented_and_kept() -> None:
    """While an object is read, longer gaps than the provider's own lifetime count as what would have been missed."""
    heads = Heads()
    now_us = came(heads, 18, 600_000_000, read=False)
    assert heads.known[7].worth(FLASH, now_us, new=True)
    now_us = came(heads, 18, 600_000_000, read=None)
    assert heads.known[7].worth(FLASH, now_us, new=False)
    assert not heads.known[7].worth(FLASH, now_us + 4 * HOUR_US, new=False)


def test_a_few_misses_are_chance() -> None:
    heads = Heads()
    now_us = came(heads, 4, 60_000_000, read=False)
    assert not heads.known[7].worth(Rent(1.0, 0.0, 0.0), now_us, new=True)


def test_an_object_is_known_until_it_ends_or_is_gone_here_and_elsewhere() -> None:
    one, other = Heads(), Heads()
    one.fresh = {}
    one.keep(7, Stored("cachedContents/1", HOUR_US))
    other.take(one.fresh.items())
    assert (other.object(7, HOUR_US - 1), other.object(7, HOUR_US)) == ("cachedContents/1", None)
    one.keep(7, None)
    other.take(one.fresh.items())
    assert (one.object(7, 0), other.object(7, 0)) == (None, None)


def test_it_is_bounded() -> None:
    heads = Heads(most=3)
    for n in range(9):
        heads.came(Head(n, 1, 1), n, 300.0, read=False, latest=lambda: None)
    assert list(heads.known) == [6, 7, 8]


@pytest.mark.parametrize("per_hour", [0.5, 1, 4, 12, 40])
@pytest.mark.parametrize("model", ["gemini-3.8-flash", "gemini-2.5-pro"])
def test_renting_is_never_dearer_than_a_hundredth_and_often_much_cheaper(model: str, per_hour: float) -> None:
    found = run(model, per_hour, days=5)
    assert found.stored <= 1.01 * found.by_itself
    if (model, per_hour) in {("gemini-3.8-flash", 4), ("gemini-3.8-flash", 12)}:
        assert found.stored < 0.5 * found.by_itself
