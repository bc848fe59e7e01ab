"""A failing backend sees a tenth more, not twice as much."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.retries import RetryBudget


def test_three_in_ten_seconds_are_always_allowed() -> None:
    """A quiet backend may be tried again; after ten seconds anew."""
    budget = RetryBudget()
    budget.call(100.0)
    assert [budget.take(100.1) for _ in range(4)] == [True, True, True, False]
    assert not budget.take(109.9)
    assert budget.take(110.1)


def test_clients_tries_use_it_up() -> None:
    """What an SDK repeats by itself is load too."""
    budget = RetryBudget()
    for _ in range(20):
        budget.call(5.0, again_by_client=True)
    assert not budget.take(5.5)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 200)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_tries_stay_within_a_tenth(load: list[tuple[float, int]]) -> None:
    """Every call fails and wants another try, at any rate: in no ten seconds are there more than a tenth, or three."""
    budget, now, calls, tries = RetryBudget(), 1000.0, list[float](), list[float]()
    for pause, count in load:
        now += pause
        for _ in range(count):
            budget.call(now)
            calls.append(now)
            if budget.take(now):
                tries.append(now)
    for end in {int(t) for t in tries}:
        within = [t for t in tries if end - 9 <= int(t) <= end]
        assert len(within) <= max(3, 0.1 * sum(end - 9 <= int(t) <= end for t in calls) + 1)
