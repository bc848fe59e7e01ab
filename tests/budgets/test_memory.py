"""Calls at once cannot overspend, nothing stays reserved, and every operation counts once."""
from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets import AlreadySettled, BudgetRule, Budgets, BudgetState, Hold, Refused, Settlement
from gateway.budgets.memory import MemoryBudgets
from gateway.core.call import Tenant

ALPHA = Tenant(team="alpha", project="web", key_id="k1")
OTHER_KEY = Tenant(team="alpha", project="web", key_id="k2")
BETA = Tenant(team="beta", key_id="k3")
START_US = 1_772_000_000_000_000     # 2026-02-25
HOUR_US = 3_600_000_000
LATER = START_US + 10**15


class Clock:
    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budgets(clock: Clock) -> Budgets:
    return MemoryBudgets(clock)


def rule(limit: int, name: str = "cap", **given: Any) -> BudgetRule:
    return BudgetRule(**{"name": name, "limit_nanos": limit, "window": "total", **given})


async def state(budgets: Budgets, account: str = "alpha/cap") -> BudgetState:
    return next(s for s in await budgets.snapshot() if s.account == account)


async def amounts(budgets: Budgets, account: str = "alpha/cap") -> tuple[int, int]:
    found = await state(budgets, account)
    return found.spent_nanos, found.held_nanos


async def test_a_hold_is_taken_settled_and_gone(budgets: Budgets) -> None:
    """Reserved first, then the real cost is booked and the rest is free."""
    hold = await budgets.hold(ALPHA, [rule(100)], 40, "a", LATER)
    assert await amounts(budgets) == (0, 40)
    assert await budgets.settle(hold, 25) == Settlement(25)
    assert await amounts(budgets) == (25, 0)


async def test_twenty_at_once_do_not_pass_a_limit_for_six(budgets: Budgets) -> None:
    """Check and act are one step."""
    async def call(number: int) -> Hold | Refused:
        try:
            return await budgets.hold(ALPHA, [rule(100)], 15, f"a{number}", LATER)
        except Refused as refusal:
            return refusal
    answers = await asyncio.gather(*map(call, range(20)))
    assert sum(isinstance(answer, Hold) for answer in answers) == 6
    assert await amounts(budgets) == (0, 90)


async def test_all_budgets_of_a_call_or_none(budgets: Budgets) -> None:
    """The one without room refuses, and the others are as they were."""
    rules = [rule(1_000, "team"), rule(10, "key", scope="key"), rule(1_000, "day", window="day")]
    with pytest.raises(Refused) as caught:
        await budgets.hold(ALPHA, rules, 11, "a", LATER)
    assert caught.value.rule.name == "key"
    assert {(s.spent_nanos, s.held_nanos) for s in await budgets.snapshot()} == {(0, 0)}
    await budgets.hold(ALPHA, rules, 10, "b", LATER)
    assert {s.held_nanos for s in await budgets.snapshot()} == {10}


@pytest.mark.parametrize(("limit", "spent", "amount", "fits"), [
    (100, 0, 100, True), (100, 0, 101, False), (100, 99, 1, True), (100, 99, 2, False), (100, 100, 0, False), (100, 101, 0, False), (0, 0, 0, False), (0, 0, 1, False),
    (100, 99, 0, True),
])
async def test_the_limit_itself_is_over(budgets: Budgets, limit: int, spent: int, amount: int, fits: bool) -> None:
    """A hold may fill a budget; spend equal to the limit is over; limit 0 stops everything."""
    await budgets.seed(ALPHA, rule(limit), spent)
    if fits:
        await budgets.hold(ALPHA, [rule(limit)], amount, "a", LATER)
    else:
        with pytest.raises(Refused):
            await budgets.hold(ALPHA, [rule(limit)], amount, "a", LATER)


async def test_teams_and_keys_have_their_own_money(budgets: Budgets) -> None:
    """What one spends another has."""
    for tenant, each, name in ((ALPHA, rule(10), "a"), (BETA, rule(10), "b"), (ALPHA, rule(10, "k", scope="key"), "c"), (OTHER_KEY, rule(10, "k", scope="key"), "d")):
        await budgets.hold(tenant, [each], 10, name, LATER)
    with pytest.raises(Refused):
        await budgets.hold(OTHER_KEY, [rule(10)], 1, "e", LATER)


async def test_no_budget_no_limit(budgets: Budgets) -> None:
    """A team without budgets holds nothing."""
    hold = await budgets.hold(ALPHA, [], 10**12, "a", LATER)
    assert await budgets.settle(hold, 10**12) == Settlement(10**12)
    assert await budgets.snapshot() == []


async def test_every_operation_counts_once(budgets: Budgets) -> None:
    """A repeated hold is the same one, a repeated settlement changes nothing, a settled id is not held again."""
    hold = await budgets.hold(ALPHA, [rule(100)], 40, "a", LATER)
    assert await budgets.hold(ALPHA, [rule(100)], 40, "a", LATER) == hold
    assert await amounts(budgets) == (0, 40)
    await budgets.settle(hold, 25)
    assert await budgets.settle(hold, 30) == Settlement(25, repeated=True)
    assert await budgets.release(hold) == Settlement(25, repeated=True)
    assert await amounts(budgets) == (25, 0)
    with pytest.raises(AlreadySettled):
        await budgets.hold(ALPHA, [rule(100)], 1, "a", LATER)
    with pytest.raises(AlreadySettled):
        await budgets.extend(hold, [rule(100)], 50, LATER)


async def test_a_released_hold_costs_nothing(budgets: Budgets) -> None:
    """A failed attempt gives its money back."""
    hold = await budgets.hold(ALPHA, [rule(100)], 100, "a", LATER)
    await budgets.release(hold)
    assert await amounts(budgets) == (0, 0)
    await budgets.hold(ALPHA, [rule(100)], 100, "b", LATER)


async def test_more_than_was_held_is_booked_and_marked(budgets: Budgets) -> None:
    """The truth counts, also past the limit."""
    hold = await budgets.hold(ALPHA, [rule(100)], 100, "a", LATER)
    assert await budgets.settle(hold, 130) == Settlement(130, over_hold=True)
    assert await amounts(budgets) == (130, 0)


async def test_a_cost_that_is_not_known_is_what_was_held(budgets: Budgets) -> None:
    """Unknown is not free."""
    hold = await budgets.hold(ALPHA, [rule(100)], 40, "a", LATER)
    assert await budgets.settle(hold, None) == Settlement(40)
    assert await amounts(budgets) == (40, 0)


async def test_a_negative_hold_is_a_mistake(budgets: Budgets) -> None:
    """It would make money."""
    with pytest.raises(ValueError, match="negative"):
        await budgets.hold(ALPHA, [rule(100)], -1, "a", LATER)


async def test_forgotten_holds_end(budgets: Budgets, clock: Clock) -> None:
    """At their expiry the money is free again; an attempt that settles after it is booked all the same."""
    hold = await budgets.hold(ALPHA, [rule(100)], 100, "a", START_US + 10)
    clock.us += 9
    with pytest.raises(Refused):
        await budgets.hold(ALPHA, [rule(100)], 1, "b", LATER)
    clock.us += 1
    assert await amounts(budgets) == (0, 0)
    await budgets.hold(ALPHA, [rule(100)], 100, "c", LATER)
    assert await budgets.settle(hold, 70) == Settlement(70)
    assert await amounts(budgets) == (70, 100)


async def test_a_stream_raises_its_hold_in_steps(budgets: Budgets, clock: Clock) -> None:
    """More money and more time, or neither."""
    rules = [rule(100)]
    first = await budgets.hold(ALPHA, rules, 40, "a", START_US + 10)
    raised = await budgets.extend(first, rules, 60, START_US + 20)
    clock.us += 15
    assert await amounts(budgets) == (0, 60)
    with pytest.raises(Refused):
        await budgets.extend(raised, rules, 101, LATER)
    assert await amounts(budgets) == (0, 60)
    clock.us += 5
    assert await amounts(budgets) == (0, 0)
    again = await budgets.extend(raised, rules, 50, LATER)
    assert await amounts(budgets) == (0, 50)
    await budgets.settle(again, 10)
    assert await amounts(budgets) == (10, 0)


async def test_seeding_sets_and_never_adds(budgets: Budgets) -> None:
    """Twice from the same ledger is the same."""
    for spent in (30, 30):
        await budgets.seed(ALPHA, rule(100), spent)
    hold = await budgets.hold(ALPHA, [rule(100)], 70, "a", LATER)
    await budgets.seed(ALPHA, rule(100), 30)
    assert await amounts(budgets) == (30, 70)
    await budgets.settle(hold, 70)
    with pytest.raises(Refused):
        await budgets.hold(ALPHA, [rule(100)], 0, "b", LATER)


async def test_a_new_window_begins_empty_and_old_costs_stay_in_the_old(budgets: Budgets, clock: Clock) -> None:
    """A hold over midnight neither blocks the new day nor is billed to it, as the ledger counts by arrival."""
    day = rule(100, window="day")
    held = await budgets.hold(ALPHA, [day], 60, "a", LATER)
    spent = await budgets.hold(ALPHA, [day], 40, "b", LATER)
    await budgets.settle(spent, 40)
    clock.us += 24 * HOUR_US
    await budgets.hold(ALPHA, [day], 100, "c", LATER)
    await budgets.settle(held, 60)
    assert await amounts(budgets) == (0, 100)
    clock.us += 24 * HOUR_US
    found = await state(budgets)
    assert (found.spent_nanos, found.held_nanos) == (0, 0)
    assert found.starts_us is not None
    assert found.ends_us == found.starts_us + 24 * HOUR_US


async def test_a_month_is_the_zones_own(budgets: Budgets, clock: Clock) -> None:
    """Half past four UTC on 1 March is still February in New York."""
    month = rule(10, window="month", timezone="America/New_York")
    await budgets.seed(ALPHA, month, 10)
    clock.us = 1_772_339_400_000_000        # 2026-03-01T04:30Z
    with pytest.raises(Refused, match="2026-03-01T00:00:00-05:00"):
        await budgets.hold(ALPHA, [month], 1, "a", LATER)
    clock.us += HOUR_US // 2
    await budgets.hold(ALPHA, [month], 1, "b", LATER)


async def test_a_changed_limit_counts_at_once(budgets: Budgets) -> None:
    """Spend stays, the rule is the new one."""
    await budgets.seed(ALPHA, rule(100), 90)
    await budgets.hold(ALPHA, [rule(200)], 110, "a", LATER)
    assert (await state(budgets)).limit_nanos == 200
    with pytest.raises(Refused):
        await budgets.hold(ALPHA, [rule(50)], 0, "b", LATER)


async def test_old_windows_and_ids_are_forgotten(clock: Clock) -> None:
    """A process that runs for months keeps no trace of each day."""
    budgets = MemoryBudgets(clock)
    for number in range(50):
        hold = await budgets.hold(ALPHA, [rule(100, window="day"), rule(10**6, "all")], 1, f"a{number}", LATER)
        await budgets.settle(hold, 1)
        clock.us += 24 * HOUR_US
    assert len(budgets._counters) <= 4
    assert await amounts(budgets, "alpha/all") == (50, 0)


RULES = [rule(1_000, "total"), rule(300, "day", window="day"), rule(200, "key", scope="key"), rule(500, "week", window="week", timezone="Asia/Kathmandu")]
STEPS = st.lists(st.tuples(
    st.sampled_from(["hold", "hold", "hold", "settle", "release", "extend", "tick", "again"]), st.integers(0, 150), st.integers(0, 10**6), st.sampled_from([ALPHA, OTHER_KEY, BETA]),
), max_size=60)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_order_of_events_passes_a_limit_or_leaves_a_hold(steps: list[tuple[str, int, int, Tenant]]) -> None:
    """Random calls, repeated, extended, abandoned: spent and held stay within every limit, and books and clients agree."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int, int, Tenant]]) -> None:
    clock = Clock()
    budgets = MemoryBudgets(clock)
    live: dict[str, tuple[Hold, Tenant]] = {}
    booked: dict[tuple[str, int], int] = defaultdict(int)
    for number, (what, amount, pick, tenant) in enumerate(steps):
        chosen = list(live)[pick % len(live)] if live else None
        try:
            if what == "hold":
                rules = RULES[: pick % 4 + 1]
                live[f"a{number}"] = (await budgets.hold(tenant, rules, amount, f"a{number}", clock.us + pick * 60_000 + 1), tenant)
            elif what == "tick":
                clock.us += pick * 100_000
            elif chosen:
                hold, owner = live[chosen]
                if what == "extend":
                    live[chosen] = (await budgets.extend(hold, RULES[: len(hold.slots)], hold.amount_nanos + amount, clock.us + 10**10), owner)
                elif what == "again":
                    if hold.expires_us > clock.us:
                        assert await budgets.hold(owner, RULES[: len(hold.slots)], 1, chosen, hold.expires_us) == hold
                elif hold.expires_us > clock.us:       # a cost within a live hold cannot pass a limit
                    cost = min(amount, hold.amount_nanos) if what == "settle" else 0
                    await (budgets.settle(hold, cost) if what == "settle" else budgets.release(hold))
                    assert (await budgets.settle(hold, 10**9)).repeated
                    for slot in hold.slots:
                        booked[slot] += cost
                    del live[chosen]
        except Refused:
            pass
        for each in await budgets.snapshot():
            assert each.held_nanos >= 0
            assert each.spent_nanos + each.held_nanos <= each.limit_nanos
            start = -(2**62) if each.starts_us is None else each.starts_us
            assert each.spent_nanos == booked[each.account, start]
    clock.us += 10**13
    assert all(each.held_nanos == 0 for each in await budgets.snapshot())
    assert not budgets._live


async def test_many_tasks_at_once_agree_with_the_books() -> None:
    """67 tasks, some repeating, some abandoning: never over, nothing left, the posted sum is the clients' sum."""
    budgets, chance, limit, posted = MemoryBudgets(lambda: START_US), random.Random(7), rule(40_000), 0

    async def client(task: int) -> None:
        nonlocal posted
        for call in range(30):
            amount = chance.randrange(1, 200)
            try:
                hold = await budgets.hold(ALPHA, [limit], amount, f"{task}-{call}", LATER)
            except Refused:
                continue
            await asyncio.sleep(0)
            if chance.random() < 0.1:
                await budgets.hold(ALPHA, [limit], amount, f"{task}-{call}", LATER)
            spent, held = await amounts(budgets)
            assert spent + held <= limit.limit_nanos
            posted += (await budgets.settle(hold, chance.randrange(0, amount + 1))).posted_nanos

    await asyncio.gather(*map(client, range(67)))
    assert await amounts(budgets) == (posted, 0)
    assert posted > 30_000
