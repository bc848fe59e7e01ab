"""The plan is the cheapest there is, by the stated cost."""
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planner.choice import Choice, Rates, Segment, least, mean_cost

CLAUDE = Rates(0.1, (1.25, 2.0))
chances = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda pair: (min(pair), max(pair)))
segments = st.lists(st.builds(Segment, st.floats(1, 1e5), chances), min_size=1, max_size=6)


def brute(parts: list[Segment], held: int, rates: Rates) -> float:
    """All ways to store a beginning, the long part of it first."""
    costs = []
    for last, long in itertools.product(range(max(held, -1), len(parts)), range(-1, len(parts))):
        if long > last:
            continue
        cost = 0.0
        for index, part in enumerate(parts):
            if index <= held:
                price = rates.read
            elif index > last:
                price = 1.0
            else:
                life = 1 if index <= long else 0
                price = mean_cost(part.chances[life], rates.writes[life], rates.read)
            cost += part.tokens * price
        costs.append(cost)
    return min(costs)


@given(segments, st.integers(-1, 5))
def test_no_other_plan_is_cheaper(parts: list[Segment], held: int) -> None:
    held = min(held, len(parts) - 1)
    assert least(parts, held, CLAUDE).cost == pytest.approx(brute(parts, held, CLAUDE))


@pytest.mark.parametrize(("chance", "says"), [
    pytest.param((0.0, 0.0), (-1, -1), id="never asked for again: nothing is stored"),
    pytest.param((0.2, 0.2), (-1, -1), id="below the break-even of 0.25 / 1.15"),
    pytest.param((0.23, 0.23), (0, -1), id="above it"),
    pytest.param((0.5, 0.95), (0, 0), id="gaps of more than five minutes: for an hour"),
    pytest.param((0.95, 0.96), (0, -1), id="short gaps: for five minutes"),
])  # fmt: skip
def test_break_even(chance: tuple[float, float], says: tuple[int, int]) -> None:
    """For Anthropic's prices."""
    choice = least([Segment(10_000, chance)], -1, CLAUDE)
    assert (choice.last, choice.last_long) == says


def test_a_shared_beginning_is_stored_without_its_tail() -> None:
    choice = least([Segment(5_000, (0.9, 0.9)), Segment(2_000, (0.01, 0.02))], -1, CLAUDE)
    assert choice == Choice(0, -1, pytest.approx(5_000 * mean_cost(0.9, 1.25, 0.1) + 2_000))


def test_an_automatic_cache_has_to_be_beaten() -> None:
    """Qwen: 0.2 for nothing against 0.1 for a write at 1.25: only worth it for what surely comes again."""
    qwen = Rates(0.1, (1.25,), automatic_read=0.2)
    assert least([Segment(5_000, (0.6,))], -1, qwen).last == -1
    assert least([Segment(5_000, (0.9,))], -1, qwen).last == 0


def test_what_is_held_is_read_in_any_case() -> None:
    choice = least([Segment(5_000, (0.0, 0.0)), Segment(100, (0.0, 0.0))], 0, CLAUDE)
    assert (choice.last, choice.cost) == (0, pytest.approx(600))


def test_nothing_ends_before_the_minimum() -> None:
    """What is shared below the minimum can only be read with what follows, and that never comes again."""
    parts = [Segment(500, (0.9, 0.9)), Segment(800, (0.01, 0.01))]
    assert least(parts, -1, CLAUDE, least_last=1).last == -1
