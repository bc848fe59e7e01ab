"""What only a store with a clock of our own can show: windows, and what is forgotten. The rest is tests/contracts."""
from __future__ import annotations

from typing import Any

import pytest

from gateway.budgets import Account, BudgetRule, Budgets, BudgetState, Payer, Refused
from gateway.budgets.memory import MemoryBudgets

ALPHA = Payer(team="alpha", project="web", key_id="k1")
START_US = 1_772_000_000_000_000     # 2026-02-25
HOUR_US = 3_600_000_000
LONG = 10**15


class Clock:
    def __init__(self, us: int = START_US) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def steady() -> Clock:
    return Clock(5)


@pytest.fixture
def budgets(clock: Clock, steady: Clock) -> MemoryBudgets:
    return MemoryBudgets(clock, steady_us=steady)


def account(limit: int, name: str = "cap", **given: Any) -> Account:
    made = BudgetRule(**{"name": name, "limit_nanos": limit, "window": "total", **given}).account(ALPHA)
    assert made is not None
    return made


async def state(budgets: Budgets, id: str = "alpha/cap") -> BudgetState:
    return next(s for s in await budgets.snapshot() if s.account == id)


async def amounts(budgets: Budgets, id: str = "alpha/cap") -> tuple[int, int]:
    found = await state(budgets, id)
    return found.spent_nanos, found.held_nanos


async def test_a_wall_clock_that_jumps_ends_no_hold(budgets: MemoryBudgets, clock: Clock, steady: Clock) -> None:
    """Time limits go by the monotonic clock: an hour forward or a day back frees nothing and keeps nothing."""
    await budgets.hold([account(100)], 60, "a", 10)
    for jump in (HOUR_US, -24 * HOUR_US, 24 * HOUR_US):
        clock.us += jump
        assert await amounts(budgets) == (0, 60)
    steady.us += 10
    assert await amounts(budgets) == (0, 0)


async def test_a_new_window_begins_empty_and_old_costs_stay_in_the_old(budgets: MemoryBudgets, clock: Clock) -> None:
    """A hold over midnight neither blocks the new day nor is billed to it, as the ledger counts by arrival."""
    day = account(100, window="day")
    held = await budgets.hold([day], 60, "a", LONG)
    spent = await budgets.hold([day], 40, "b", LONG)
    await budgets.settle(spent, 40)
    clock.us += 24 * HOUR_US
    await budgets.hold([day], 100, "c", LONG)
    await budgets.settle(held, 60)
    assert await amounts(budgets) == (0, 100)
    clock.us += 24 * HOUR_US
    found = await state(budgets)
    assert (found.spent_nanos, found.held_nanos) == (0, 0)
    assert found.starts_us is not None
    assert found.ends_us == found.starts_us + 24 * HOUR_US


async def test_a_month_is_the_zones_own(budgets: MemoryBudgets, clock: Clock) -> None:
    """Half past four UTC on 1 March is still February in New York."""
    month = account(10, window="month", timezone="America/New_York")
    await budgets.seed(month, 10)
    clock.us = 1_772_339_400_000_000        # 2026-03-01T04:30Z
    with pytest.raises(Refused, match="2026-03-01T00:00:00-05:00"):
        await budgets.hold([month], 1, "a", LONG)
    clock.us += HOUR_US // 2
    await budgets.hold([month], 1, "b", LONG)


async def test_old_windows_ids_and_timers_are_forgotten(clock: Clock, steady: Clock) -> None:
    """A process that runs for months keeps no trace of each day, nor of each call."""
    budgets = MemoryBudgets(clock, steady_us=steady)
    for number in range(5_000):
        hold = await budgets.hold([account(100, window="day"), account(10**6, "all")], 1, f"a{number}", LONG)
        await budgets.settle(hold, 1)
        clock.us += HOUR_US
    assert len(budgets._books) == 2
    assert not any(book.before for book in budgets._books.values())
    assert (len(budgets._live), len(budgets._expiry) < 2_000) == (0, True)
    assert await amounts(budgets, "alpha/all") == (5_000, 0)
