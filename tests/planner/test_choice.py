"""The plan is the cheapest there is, by the stated cost."""
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planner.choice import Odds, Rates, Segment, least, to_go

CLAUDE = Rates(0.1, (1.25, 2.0))
odds = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted).map(lambda three: Odds(tuple(three[:2]), three[2]))
segments = st.lists(st.builds(Segment, st.floats(1, 1e5), odds, odds, st.sampled_from([1.0, 2.0])), min_size=1, max_size=6)


def lasting(tokens: float, *within: float) -> Segment:
    """As likely after this call as after all later ones."""
    return Segment(tokens, Odds(within, within[-1]), Odds(within, within[-1]))


def brute(parts: list[Segment], held: int, rates: Rates, *, held_long: bool) -> float:
    """All ways to store a beginning, the long part of it first; what is held lives on as long as the longest mark behind it."""
    costs = []
    for last, long in itertools.product(range(max(held, -1), len(parts)), range(-1, len(parts))):
        if long > last:
            continue
        cost = 0.0
        for index, part in enumerate(parts):
            known, weighed = to_go(part, rates), rates.weighed(part.doubt)
            if index <= held:
                lives = held_long or long > held
                price = rates.read + (known.stored[lives] - weighed[lives]) - (known.stored[held_long] - weighed[held_long])
            elif index > last:
                price = known.bare
            else:
                price = known.stored[index <= long]
            cost += part.tokens * price
        costs.append(cost)
    return min(costs)


@given(segments, st.integers(-1, 5), st.booleans())
def test_no_other_plan_is_cheaper(parts: list[Segment], held: int, held_long: bool) -> None:
    held = min(held, len(parts) - 1)
    found = least(parts, held, CLAUDE, held_long=held_long).cost
    assert found == pytest.approx(brute(parts, held, CLAUDE, held_long=held_long), rel=1e-6, abs=1e-3)


def test_a_long_mark_behind_what_lives_short_keeps_it() -> None:
    """A short tail is stored for long where the long beginning before it would be lost in a pause."""
    begins, tail = lasting(9_000, 0.8, 0.85), lasting(300, 0.8, 0.85)
    assert least([begins, tail], 0, CLAUDE).last_long == 1
    assert least([begins, tail], 0, CLAUDE, held_long=True).last_long == -1


@pytest.mark.parametrize(("chance", "says"), [
    pytest.param((0.0, 0.0), (-1, -1), id="never asked for again: nothing is stored"),
    pytest.param((0.2, 0.2), (-1, -1), id="below the break-even of 0.25 / 1.15"),
    pytest.param((0.23, 0.23), (0, -1), id="above it"),
    pytest.param((0.4, 0.95), (0, 0), id="gaps of more than five minutes: for an hour"),
    pytest.param((0.95, 0.96), (0, -1), id="short gaps: for five minutes"),
])  # fmt: skip
def test_break_even(chance: tuple[float, float], says: tuple[int, int]) -> None:
    """For Anthropic's prices."""
    choice = least([lasting(10_000, *chance)], -1, CLAUDE)
    assert (choice.last, choice.last_long) == says


def test_a_shared_beginning_is_stored_without_its_tail() -> None:
    choice = least([lasting(5_000, 0.9, 0.9), lasting(2_000, 0.01, 0.02)], -1, CLAUDE)
    assert (choice.last, choice.last_long) == (0, -1)


@pytest.mark.parametrize(("first", "later", "says"), [
    pytest.param(0.6, 0.6, -1, id="few turns: two reads at half the price do not pay for a write"),
    pytest.param(0.9, 0.9, 0, id="many turns"),
    pytest.param(0.6, 0.95, 0, id="many turns, if there is a second one"),
    pytest.param(0.1, 0.95, -1, id="hardly ever a second one"),
])  # fmt: skip
def test_an_automatic_cache_has_to_be_beaten_over_all_turns(first: float, later: float, says: int) -> None:
    """Qwen: read at 0.2 for nothing, or at 0.1 after a write at 1.25."""
    qwen = Rates(0.1, (1.25,), automatic_read=0.2)
    part = Segment(5_000, Odds((first,), first), Odds((later,), later))
    assert least([part], -1, qwen).last == says


def test_what_the_automatic_cache_has_is_worth_staying_for() -> None:
    """A conversation that pays for a write of 5,000 tokens does not if 4,000 of them are read at 0.2 without one."""
    qwen, part = Rates(0.1, (1.25,), automatic_read=0.2), lasting(5_000, 0.85)
    assert least([part], -1, qwen).last == 0
    stays = least([part], -1, qwen, elsewhere=4_000)
    assert stays.last == -1
    assert stays.cost == pytest.approx(least([part], -1, Rates(0.1, (9.0,), automatic_read=0.2)).cost - 4_000 * 0.8)


def test_what_is_held_is_read_in_any_case() -> None:
    parts = [lasting(5_000, 0.0, 0.0), lasting(100, 0.0, 0.0)]
    choice = least(parts, 0, CLAUDE)
    assert choice.last == 0
    assert choice.cost == pytest.approx(5_000 * 0.1 + 100)


def test_nothing_ends_before_the_minimum() -> None:
    """What is shared below the minimum can only be read with what follows, and that never comes again."""
    parts = [lasting(500, 0.9, 0.9), lasting(800, 0.01, 0.01)]
    assert least(parts, -1, CLAUDE, least_last=1).last == -1


def test_a_prefix_that_lasts_costs_what_its_renewals_do() -> None:
    """With equal chances now and later: `w (1 - P) + r P` for each of the calls that are to come."""
    chance = Odds((0.8, 0.8), 0.8)
    assert to_go(Segment(1.0, chance, chance), CLAUDE).stored[0] == pytest.approx((1.25 * 0.2 + 0.1 * 0.8) / 0.2)
