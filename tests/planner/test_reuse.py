"""Chances of reuse are learnt from what came and from what did not."""
from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planner.reuse import DOUBTS, EDGES_S, PRIORS, ReuseBook, Whose

WHOSE = Whose("client", "app")


def learn(book: ReuseBook, gaps_s: list[float | None], kind: str = "turn", every_s: float = 1.0, app: str = "app") -> int:
    """Prefixes that begin to wait every `every_s` seconds and come again after a gap, or never; the time at the end."""
    events = [(n * every_s, n, True) for n in range(len(gaps_s))]
    events += [(n * every_s + gap, n, False) for n, gap in enumerate(gaps_s) if gap is not None]
    now_us = 0
    for at_s, number, starts in sorted(events):
        now_us = int(at_s * 1e6)
        if starts:
            book.came([], now_us)
            book.wait_for(number, kind, Whose("client", app), 1_000, now_us)
        else:
            book.came([number], now_us)
    return now_us


def test_at_first_the_prior_holds() -> None:
    chance = ReuseBook().chance("turn", WHOSE, 1_000)
    assert chance.ever == pytest.approx(PRIORS["turn"].ever)
    assert chance.within(300.0) == pytest.approx(PRIORS["turn"].within(300.0))


def test_what_is_doubted_needs_little_to_be_believed() -> None:
    book, whose = ReuseBook(), WHOSE._replace(prior=DOUBTS)
    assert book.chance("turn", whose, 1_000).ever < 0.1
    learn(book, [30.0] * 8)
    assert book.chance("turn", whose, 1_000).within(300.0) > 0.5


def test_what_never_comes_again_is_given_up_long_before_the_longest_lifetime() -> None:
    """After an hour of calls whose prefixes never came, storing them for five minutes is below every break-even."""
    book = ReuseBook()
    learn(book, [None] * 100, every_s=36.0)
    assert book.chance("turn", WHOSE, 1_000).within(300.0) < 0.1


def test_what_waits_counts_long_before_its_time_is_over() -> None:
    """Twenty prefixes that have not come after two minutes and a half are less likely to come within five than at the start."""
    chances = []
    for wait_s in (1, 65, 150, 280):
        book = ReuseBook()
        book.came([], learn(book, [None] * 20, every_s=0.1) + wait_s * 1_000_000)
        chances.append(book.chance("turn", WHOSE, 1_000).within(300.0))
    assert chances == sorted(set(chances), reverse=True)
    assert chances[2] < chances[0] / 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_that_comes_again_is_found(share: float) -> None:
    rng, book = random.Random(7), ReuseBook()
    learn(book, [rng.uniform(20, 250) if rng.random() < share else None for _ in range(400)], every_s=60.0)
    assert book.chance("turn", WHOSE, 1_000).within(300.0) == pytest.approx(share, abs=0.08)


def test_long_gaps_are_told_from_short_ones() -> None:
    rng, book = random.Random(7), ReuseBook()
    learn(book, [rng.uniform(400, 3000) for _ in range(200)], every_s=30.0)
    chance = book.chance("turn", WHOSE, 1_000)
    assert chance.within(300.0) < 0.1
    assert chance.within(3600.0) > 0.85


def test_a_new_app_starts_from_what_its_client_is_known_for() -> None:
    book = ReuseBook()
    learn(book, [None] * 200, every_s=36.0, app="old")
    assert book.chance("turn", Whose("client", "new"), 1_000).within(300.0) < 0.15
    assert book.chance("turn", Whose("other", "new"), 1_000).within(300.0) > 0.5


def test_what_is_long_is_told_from_what_is_short() -> None:
    """An app whose long pieces come again and whose short ones do not."""
    book, now_us = ReuseBook(), 0
    for number in range(300):
        now_us = number * 20_000_000
        book.came([number - 3] if number % 2 else [], now_us)
        book.wait_for(number, "before", WHOSE, 50 if number % 2 else 20_000, now_us)
    assert book.chance("before", WHOSE, 20_000).within(300.0) > 0.8
    assert book.chance("before", WHOSE, 50).within(300.0) < 0.2


def test_newer_experience_wins() -> None:
    rng, book = random.Random(7), ReuseBook()
    learn(book, [None] * 600 + [rng.uniform(20, 250) for _ in range(1_500)], every_s=60.0)
    assert book.chance("turn", WHOSE, 1_000).within(300.0) > 0.8


def test_it_is_bounded() -> None:
    book = ReuseBook(most_prefixes=50, most_kinds=20)
    for number in range(500):
        book.wait_for(number, "turn", Whose("client", f"app {number}"), 1_000, number)
    assert len(book._waiting) <= 50
    assert len(book._kinds) <= 22


@given(st.lists(st.one_of(st.none(), st.floats(0.1, 50_000)), max_size=60), st.floats(0.1, 500))
def test_chances_are_chances(gaps_s: list[float | None], every_s: float) -> None:
    """Between 0 and 1, and no less within a longer time."""
    book = ReuseBook()
    learn(book, gaps_s, every_s=every_s)
    chance = book.chance("turn", WHOSE, 1_000)
    within = [chance.within(edge) for edge in EDGES_S]
    assert all(0.0 <= value <= 1.0 for value in within)
    assert within == sorted(within)
    for reuse in book._kinds.values():
        assert min(reuse.waiting) >= 0


def test_what_came_says_what_it_was_taken_for_and_how_long_it_had_waited() -> None:
    book = ReuseBook()
    book.wait_for(7, "opening", WHOSE, 1_000, 0)
    book.wait_for(8, "again", WHOSE, 1_000, 0)
    came = book.came([6, 7, 8, 9], 20_000_000)
    assert (came.deepest, came.waited_s, came.kinds) == (2, 20.0, {7: "opening", 8: "again"})
    assert book.came([6, 7, 8, 9], 21_000_000).deepest == -1
