"""Budgets at the house, as a worker uses them: exact, settled once, and read from the past where they are new."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from gateway.budgets import Account, BudgetRule, Gate, Hold, Payer, Refused, Spent, TooFast
from gateway.budgets.memory import MemoryBudgets
from gateway.ledger.sql import Store
from gateway.workers.errors import CODECS
from gateway.workers.far import FarBudgets
from gateway.workers.house import House, _Room
from gateway.workers.link import connect

TTL_US = 60_000_000


async def past(account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Spent:
    await asyncio.sleep(0)
    return Spent(10)


def account(limit_nanos: int = 100) -> Account:
    found = BudgetRule(name="cap", limit_nanos=limit_nanos).account(Payer(team="t"))
    assert found is not None
    return found


def run(test: Callable[[FarBudgets, FarBudgets, MemoryBudgets], Awaitable[None]]) -> None:
    """Two workers of one house."""

    async def all_of_it() -> None:
        nothing = cast(Any, None)
        budgets = MemoryBudgets(past=past)
        house, workers, links = House(Store("sqlite:///unused.db"), nothing, nothing, budgets), [], []
        for _ in range(2):
            a, b = socket.socketpair()
            links += [await connect(a, _Room(house).methods(), lambda: None, CODECS), await connect(b, {}, lambda: None, CODECS)]
            workers.append(FarBudgets(links[-1]))
        await test(workers[0], workers[1], budgets)
        for link in links:
            link.close()

    asyncio.run(asyncio.wait_for(all_of_it(), 10))


def test_a_hold_comes_back_whole_and_counts_for_all_workers() -> None:
    """What a worker knows does not travel back; what is spent already is read first."""

    async def test(one: FarBudgets, other: FarBudgets, budgets: MemoryBudgets) -> None:
        ours = account()
        first, second = await asyncio.gather(one.hold((ours,), 40, "a1", TTL_US), other.hold((ours,), 30, "a2", TTL_US))
        assert (first.id, first.amount_nanos, [slot[0] for slot in first.slots]) == ("a1", 40, [ours])
        assert await one.hold((account(),), 40, "a1", TTL_US) == first
        with pytest.raises(Refused) as told:
            await other.hold((ours,), 21, "a3", TTL_US)
        assert (told.value.spent_nanos, told.value.held_nanos) == (10, 70)
        assert not one.post(first, 15, None)
        other.post(second, None)
        [state] = await other.snapshot()
        await one.snapshot()
        [state] = await one.snapshot()
        assert (state.spent_nanos, state.held_nanos) == (10 + 15 + 30, 0)

    run(test)


def test_a_hold_is_settled_once_and_by_whichever_worker() -> None:
    """One that is kept in the database for an answer made in the background may come to another worker."""

    async def test(one: FarBudgets, other: FarBudgets, budgets: MemoryBudgets) -> None:
        hold = await one.hold((account(),), 40, "a1", TTL_US)
        other.post(Hold(hold.id, hold.amount_nanos, hold.expires_us, hold.slots), 7)
        await other.snapshot()          # so that it has been heard
        one.post(hold, 7)
        one.post(hold, 7)
        [state] = await one.snapshot()
        assert (state.spent_nanos, state.held_nanos) == (17, 0)

    run(test)


def test_rate_limits_pass_with_the_hold() -> None:
    async def test(one: FarBudgets, other: FarBudgets, budgets: MemoryBudgets) -> None:
        gate = Gate("t/concurrent", "concurrent", 1, 1, "team t may have one call at once")
        hold = await one.hold((account(),), 1, "a1", TTL_US, (gate,))
        assert hold.gates == (gate,)
        with pytest.raises(TooFast):
            await other.hold((), 0, "a2", TTL_US, (gate,))
        await one.release(hold)
        await one.snapshot()
        await other.hold((), 0, "a2", TTL_US, (gate,))

    run(test)
