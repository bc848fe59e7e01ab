"""One suite for every store of budgets: calls at once cannot overspend, nothing stays reserved, every operation counts once."""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from gateway.budgets import (
    Account,
    AlreadySettled,
    BudgetRule,
    Budgets,
    BudgetState,
    Gate,
    Hold,
    Payer,
    Refused,
    Settlement,
    Spent,
    StoreAway,
    TooFast,
    Unread,
)  # fmt: skip
from gateway.budgets.memory import MemoryBudgets
from gateway.budgets.redis import RedisBudgets
from gateway.redis_link import Link, address
from tests.redis_server import Server

ALPHA = Payer(team="alpha", project="web", key_id="k1")
OTHER_KEY = Payer(team="alpha", project="web", key_id="k2")
BETA = Payer(team="beta", key_id="k3")
MINUTE_US = 60_000_000
_orgs = itertools.count()


class Ledger:
    """What the ledger would say of an account's past."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = {}
        self.read = 0
        self.away = False

    async def __call__(self, account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Spent:
        self.read += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unread
        spent = self.spent.get(account.id, 0)
        return Spent(spent) if recent_us is None else Spent(spent - 7, {"x1": 3, "x2": 4})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=["memory", "redis"])
async def budgets(request: pytest.FixtureRequest, ledger: Ledger) -> AsyncIterator[Budgets]:
    if request.param == "memory":
        yield MemoryBudgets(past=ledger)
        return
    server: Server = request.getfixturevalue("server")
    store = RedisBudgets(Link(address(server.url), timeout_s=60.0), "r1", org=f"o{next(_orgs)}", past=ledger, shut_s=0.0, away="closed")
    await store.start()
    yield store
    await store.close()


def account(limit: int, name: str = "cap", payer: Payer = ALPHA, **given: Any) -> Account:
    made = BudgetRule(**{"name": name, "limit_nanos": limit, "window": "total", **given}).account(payer)
    assert made is not None
    return made


async def state(budgets: Budgets, id: str = "alpha/cap") -> BudgetState:
    return next(s for s in await budgets.snapshot() if s.account == id)


async def amounts(budgets: Budgets, id: str = "alpha/cap") -> tuple[int, int]:
    found = await state(budgets, id)
    return found.spent_nanos, found.held_nanos


async def test_a_hold_is_taken_settled_and_gone(budgets: Budgets) -> None:
    """Reserved first, then the real cost is booked and the rest is free."""
    hold = await budgets.hold([account(100)], 40, "a", MINUTE_US)
    assert await amounts(budgets) == (0, 40)
    assert await budgets.settle(hold, 25) == Settlement(25)
    assert await amounts(budgets) == (25, 0)


async def test_a_settlement_that_nobody_waits_for_is_seen_by_the_next_call(budgets: Budgets) -> None:
    """What the last call gave back, the next one has."""
    for number in range(50):
        hold = await budgets.hold([account(100)], 99, f"a{number}", MINUTE_US)
        assert not budgets.post(hold, 0)
    hold = await budgets.hold([account(100)], 99, "b", MINUTE_US)
    assert budgets.post(hold, 100)
    assert await amounts(budgets) == (100, 0)


async def test_twenty_at_once_do_not_pass_a_limit_for_six(budgets: Budgets) -> None:
    """Check and act are one step."""
    async def call(number: int) -> Hold | Refused:
        try:
            return await budgets.hold([account(100)], 15, f"a{number}", MINUTE_US)
        except Refused as refusal:
            return refusal
    answers = await asyncio.gather(*map(call, range(20)))
    assert sum(isinstance(answer, Hold) for answer in answers) == 6
    assert await amounts(budgets) == (0, 90)


async def test_all_budgets_of_a_call_or_none(budgets: Budgets) -> None:
    """The one without room refuses, and the others are as they were."""
    accounts = [account(1_000, "team"), account(10, "key", scope="key"), account(1_000, "day", window="day")]
    with pytest.raises(Refused) as caught:
        await budgets.hold(accounts, 11, "a", MINUTE_US)
    assert caught.value.rule.name == "key"
    await budgets.hold(accounts, 10, "b", MINUTE_US)
    assert {s.held_nanos for s in await budgets.snapshot()} == {10}


@pytest.mark.parametrize(("limit", "spent", "amount", "fits"), [
    (100, 0, 100, True), (100, 0, 101, False), (100, 99, 1, True), (100, 99, 2, False), (100, 100, 0, False), (100, 101, 0, False), (0, 0, 0, False), (0, 0, 1, False),
    (100, 99, 0, True), (2**53 - 1, 2**53 - 3, 2, True), (2**53 - 1, 2**53 - 3, 3, False), (2**53 - 1, 0, 2**53 - 1, True), (100, -50, 150, True), (100, -50, 151, False),
])
async def test_the_limit_itself_is_over(budgets: Budgets, ledger: Ledger, limit: int, spent: int, amount: int, fits: bool) -> None:
    """A hold may fill a budget; spend equal to the limit is over; limit 0 stops everything. Exact to the nano-dollar."""
    ledger.spent["alpha/cap"] = spent
    if fits:
        hold = await budgets.hold([account(limit)], amount, "a", MINUTE_US)
        assert await amounts(budgets) == (spent, amount)
        await budgets.settle(hold, amount)
        assert await amounts(budgets) == (spent + amount, 0)
    else:
        with pytest.raises(Refused) as caught:
            await budgets.hold([account(limit)], amount, "a", MINUTE_US)
        assert (caught.value.spent_nanos, caught.value.held_nanos) == (spent, 0)


async def test_teams_and_keys_have_their_own_money(budgets: Budgets) -> None:
    """What one spends another has."""
    for payer, each, name in ((ALPHA, {}, "a"), (BETA, {}, "b"), (ALPHA, {"scope": "key"}, "c"), (OTHER_KEY, {"scope": "key"}, "d")):
        await budgets.hold([account(10, payer=payer, **each)], 10, name, MINUTE_US)
    with pytest.raises(Refused):
        await budgets.hold([account(10, payer=OTHER_KEY)], 1, "e", MINUTE_US)


async def test_odd_names_are_accounts_like_others(budgets: Budgets) -> None:
    """A user or a tag may be any text; it breaks nothing and meets nobody else's."""
    names = ["", "a b", "a\nm x 0", "ü/日本", "x" * 500, "{}", "a|b", "%20"]
    for number, name in enumerate(names):
        payer = Payer(team="alpha", user=name, tags={"job": name})
        hold = await budgets.hold([account(10, "u", payer, scope="user"), account(10, "t", payer, scope="tag:job")], 10, f"a{number}", MINUTE_US)
        assert await budgets.settle(hold, 10) == Settlement(10)
    assert [s.spent_nanos for s in await budgets.snapshot()] == [10] * 2 * len(names)


async def test_no_budget_no_limit(budgets: Budgets) -> None:
    """A call without budgets holds nothing."""
    hold = await budgets.hold([], 10**12, "a", MINUTE_US)
    assert await budgets.settle(hold, 10**12) == Settlement(10**12)
    assert await budgets.snapshot() == []


async def test_every_operation_counts_once(budgets: Budgets) -> None:
    """A repeated hold is the same one, a repeated settlement changes nothing, a settled id is not held again."""
    hold = await budgets.hold([account(100)], 40, "a", MINUTE_US)
    assert await budgets.hold([account(100)], 40, "a", MINUTE_US) == hold
    assert await amounts(budgets) == (0, 40)
    await budgets.settle(hold, 25)
    assert await budgets.settle(hold, 30) == Settlement(25, repeated=True)
    assert await budgets.release(hold) == Settlement(25, repeated=True)
    assert await amounts(budgets) == (25, 0)
    with pytest.raises(AlreadySettled):
        await budgets.hold([account(100)], 1, "a", MINUTE_US)
    with pytest.raises(AlreadySettled):
        await budgets.extend(hold, 50, MINUTE_US)


async def test_a_released_hold_costs_nothing(budgets: Budgets) -> None:
    """A failed attempt gives its money back."""
    hold = await budgets.hold([account(100)], 100, "a", MINUTE_US)
    await budgets.release(hold)
    assert await amounts(budgets) == (0, 0)
    await budgets.hold([account(100)], 100, "b", MINUTE_US)


async def test_more_than_was_held_is_booked_and_marked(budgets: Budgets) -> None:
    """The truth counts, also past the limit."""
    hold = await budgets.hold([account(100)], 100, "a", MINUTE_US)
    assert await budgets.settle(hold, 130) == Settlement(130, over_hold=True)
    assert await amounts(budgets) == (130, 0)


async def test_a_cost_that_is_not_known_is_what_was_held(budgets: Budgets) -> None:
    """Unknown is not free."""
    hold = await budgets.hold([account(100)], 40, "a", MINUTE_US)
    assert await budgets.settle(hold, None) == Settlement(40)
    assert await amounts(budgets) == (40, 0)


async def test_a_negative_hold_is_a_mistake(budgets: Budgets) -> None:
    """It would make money."""
    with pytest.raises(ValueError, match="negative"):
        await budgets.hold([account(100)], -1, "a", MINUTE_US)


async def once_there_is_room(take: Callable[[], Awaitable[Hold]]) -> Hold:
    """Asks until it is granted, however slow the machine is."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Refused, TooFast):
                return await take()
            await asyncio.sleep(0.01)


async def test_forgotten_holds_end(budgets: Budgets) -> None:
    """At their expiry the money is free again; an attempt that settles after it is booked all the same."""
    hold = await budgets.hold([account(100)], 100, "a", MINUTE_US)
    with pytest.raises(Refused):
        await budgets.hold([account(100)], 1, "b", MINUTE_US)
    await budgets.release(hold)
    hold = await budgets.hold([account(100)], 100, "short", 50_000)
    await once_there_is_room(lambda: budgets.hold([account(100)], 100, "c", MINUTE_US))     # a store that is shared asks the ledger first
    assert await budgets.settle(hold, 70) == Settlement(70)
    assert await amounts(budgets) == (70, 100)


async def test_a_stream_raises_its_hold_in_steps(budgets: Budgets) -> None:
    """More money and more time, or neither."""
    first = await budgets.hold([account(100)], 40, "a", 300_000)
    raised = await budgets.extend(first, 60, MINUTE_US)
    await asyncio.sleep(0.35)
    assert await amounts(budgets) == (0, 60)
    with pytest.raises(Refused):
        await budgets.extend(raised, 101, MINUTE_US)
    assert await amounts(budgets) == (0, 60)
    again = await budgets.extend(raised, 50, MINUTE_US)
    assert await amounts(budgets) == (0, 60)
    await budgets.settle(again, 10)
    assert await amounts(budgets) == (10, 0)


async def test_an_expired_hold_is_taken_again_in_full(budgets: Budgets) -> None:
    """If there is still room for it."""
    first = await budgets.hold([account(100)], 60, "a", 50_000)
    other = await once_there_is_room(lambda: budgets.hold([account(100)], 50, "b", MINUTE_US))
    with pytest.raises(Refused):
        await budgets.extend(first, 60, MINUTE_US)
    await budgets.release(other)
    await budgets.extend(first, 60, MINUTE_US)
    assert await amounts(budgets) == (0, 60)


async def test_the_past_is_read_once_and_before_the_first_hold(budgets: Budgets, ledger: Ledger) -> None:
    """Calls that come at once wait for one reading; a ledger that is away is asked again by the next call."""
    ledger.spent["alpha/cap"], ledger.away = 90, True
    with pytest.raises(StoreAway):
        await budgets.hold([account(100)], 5, "a", MINUTE_US)
    ledger.away, ledger.read = False, 0
    async def take(n: int) -> Hold:
        return await budgets.hold([account(100)], 1, f"b{n}", MINUTE_US)
    holds = await asyncio.gather(*map(take, range(10)))
    assert (len(holds), ledger.read) == (10, 1)
    assert await amounts(budgets) == (90, 10)


async def test_seeding_sets_and_never_adds(budgets: Budgets) -> None:
    """Twice from the same ledger is the same."""
    for spent in (30, 30):
        await budgets.seed(account(100), spent)
    hold = await budgets.hold([account(100)], 70, "a", MINUTE_US)
    await budgets.seed(account(100), 30)
    assert await amounts(budgets) == (30, 70)
    await budgets.settle(hold, 70)
    with pytest.raises(Refused):
        await budgets.hold([account(100)], 0, "b", MINUTE_US)


async def test_a_correction_moves_what_was_spent_once(budgets: Budgets) -> None:
    """Re-rating and reconciliation count at once, for the window they fall into and by their id."""
    day = account(100, window="day")
    hold = await budgets.hold([day], 50, "a", MINUTE_US)
    await budgets.settle(hold, 50)
    span = await state(budgets)
    assert span.starts_us is not None
    for id, delta, at_us in (("c1", 20, span.starts_us), ("c1", 20, span.starts_us), ("c2", -5, span.starts_us + 1), ("c3", 9, span.starts_us - 1)):
        await budgets.correct(day, id, delta, at_us)
    await budgets.correct(account(100, "unused", window="day"), "c4", 5, span.starts_us)
    assert await amounts(budgets) == (65, 0)


async def test_an_account_that_only_counts_refuses_nothing(budgets: Budgets) -> None:
    """Alerts: the money is added up, the calls go on."""
    alert = account(100, on_exhausted="alert")
    hold = await budgets.hold([alert], 150, "a", MINUTE_US)
    await budgets.settle(hold, 120)
    await budgets.hold([alert], 150, "b", MINUTE_US)
    assert await amounts(budgets) == (120, 150)


async def test_a_changed_limit_counts_at_once(budgets: Budgets, ledger: Ledger) -> None:
    """Spend stays, the rule is the new one."""
    ledger.spent["alpha/cap"] = 90
    await budgets.hold([account(200)], 110, "a", MINUTE_US)
    assert (await state(budgets)).limit_nanos == 200
    with pytest.raises(Refused):
        await budgets.hold([account(50)], 0, "b", MINUTE_US)


async def test_another_window_is_read_from_the_ledger(budgets: Budgets, ledger: Ledger) -> None:
    """A budget that begins to count by month knows what the month has spent."""
    await budgets.hold([account(100, window="day")], 10, "a", MINUTE_US)
    ledger.spent["alpha/cap"] = 95
    with pytest.raises(Refused):
        await budgets.hold([account(100, window="month")], 10, "b", MINUTE_US)


def gate(kind: Any, limit: int, units: int = 1, id: str = "g") -> Gate:
    return Gate(f"alpha/{kind}/{id}", kind, limit, units, "team alpha may do so much")


async def test_requests_come_at_an_even_rate_with_room_for_a_burst(budgets: Budgets) -> None:
    """A tenth of a minute's at once, then one by one; the refusal says when to come back."""
    began, taken = time.monotonic(), 0

    async def until_refused() -> None:
        nonlocal taken
        while True:
            await budgets.hold([], 0, f"a{taken}", MINUTE_US, [gate("requests", 60)])
            taken += 1

    with pytest.raises(TooFast) as caught:
        await until_refused()
    assert 7 <= taken <= 8 + int(time.monotonic() - began)
    assert caught.value.retry_after_s is not None
    assert 0 < caught.value.retry_after_s <= 1
    await budgets.hold([], 0, "c", MINUTE_US, [gate("requests", 60, id="other")])


async def test_tokens_that_were_not_used_come_back(budgets: Budgets) -> None:
    """The estimate is taken first; the settlement makes it what it was."""
    hold = await budgets.hold([], 0, "a", MINUTE_US, [gate("tokens", 1_000, 900)])
    with pytest.raises(TooFast):
        await budgets.hold([], 0, "b", MINUTE_US, [gate("tokens", 1_000, 900)])
    await budgets.settle(hold, 0, tokens=100)
    await budgets.hold([], 0, "c", MINUTE_US, [gate("tokens", 1_000, 800)])
    with pytest.raises(TooFast):
        await budgets.hold([], 0, "d", MINUTE_US, [gate("tokens", 1_000, 900)])


async def test_a_call_larger_than_the_limit_is_taken_alone(budgets: Budgets) -> None:
    """It is not refused for ever, and pays with a pause after it."""
    await budgets.hold([], 0, "a", MINUTE_US, [gate("tokens", 1_000, 5_000)])
    with pytest.raises(TooFast) as caught:
        await budgets.hold([], 0, "b", MINUTE_US, [gate("tokens", 1_000, 10)])
    assert caught.value.retry_after_s is not None
    assert 180 < caught.value.retry_after_s < 300


async def test_money_is_spent_at_an_even_rate_with_a_minute_at_once(budgets: Budgets) -> None:
    """By what calls have cost, however long that was not known; a call that costs more than a minute's is paid with a pause."""
    spend = [gate("spend", 1_000, 0)]
    first = await budgets.hold([], 0, "a", MINUTE_US, spend)
    second = await budgets.hold([], 0, "b", MINUTE_US, spend)
    await asyncio.sleep(0.01)
    await budgets.settle(first, 900)
    third = await budgets.hold([], 0, "c", MINUTE_US, spend)
    await budgets.settle(second, 2_100, tokens=5)
    await budgets.settle(second, 2_100, tokens=5)
    with pytest.raises(TooFast) as caught:
        await budgets.hold([], 0, "d", MINUTE_US, spend)
    assert caught.value.retry_after_s is not None
    assert 60 < caught.value.retry_after_s <= 121
    await budgets.settle(third, None)
    await budgets.hold([], 0, "e", MINUTE_US, [gate("spend", 1_000, 0, id="other")])


async def test_a_budget_that_only_refuses_is_shown(budgets: Budgets) -> None:
    """As a process finds it that starts when the money is gone."""
    with pytest.raises(Refused):
        await budgets.hold([account(10)], 11, "a", MINUTE_US)
    assert [(state.account, state.spent_nanos, state.held_nanos) for state in await budgets.snapshot()] == [("alpha/cap", 0, 0)]


async def test_only_so_many_run_at_once(budgets: Budgets) -> None:
    """A place is free again at the settlement, and at the expiry of a hold that nobody settled."""
    two = [gate("concurrent", 2)]
    first = await budgets.hold([], 0, "a", MINUTE_US, two)
    await budgets.hold([], 0, "b", MINUTE_US, two)
    with pytest.raises(TooFast):
        await budgets.hold([], 0, "c", MINUTE_US, two)
    await budgets.settle(first, 0)
    last = await budgets.hold([], 0, "d", MINUTE_US, two)
    with pytest.raises(TooFast):
        await budgets.hold([], 0, "e", MINUTE_US, two)
    await budgets.settle(last, 0)
    await budgets.hold([], 0, "short", 50_000, two)
    await once_there_is_room(lambda: budgets.hold([], 0, "f", MINUTE_US, two))


async def test_gates_and_budgets_are_one_step(budgets: Budgets) -> None:
    """A budget's no takes nothing from a rate limit, and a rate limit's no holds no money."""
    gates = [gate("tokens", 1_000, 600), gate("concurrent", 1)]
    with pytest.raises(Refused):
        await budgets.hold([account(10)], 11, "a", MINUTE_US, gates)
    await budgets.hold([account(10)], 5, "b", MINUTE_US, gates)
    with pytest.raises(TooFast):
        await budgets.hold([account(10)], 5, "c", MINUTE_US, gates)
    assert await amounts(budgets) == (0, 5)


async def test_many_tasks_at_once_agree_with_the_books(budgets: Budgets) -> None:
    """67 tasks, some repeating, some abandoning: never over, nothing left, the posted sum is the clients' sum."""
    chance, limit, posted = random.Random(7), account(40_000), 0

    async def client(task: int) -> None:
        nonlocal posted
        for call in range(30):
            amount = chance.randrange(1, 200)
            try:
                hold = await budgets.hold([limit], amount, f"{task}-{call}", MINUTE_US)
            except Refused:
                continue
            await asyncio.sleep(0)
            if chance.random() < 0.1:
                await budgets.hold([limit], amount, f"{task}-{call}", MINUTE_US)
            if chance.random() < 0.1:
                spent, held = await amounts(budgets)
                assert spent + held <= 40_000
            if chance.random() < 0.5:
                done = await budgets.settle(hold, chance.randrange(0, amount + 1))
                posted += done.posted_nanos
            else:
                budgets.post(hold, amount)
                posted += amount

    await asyncio.gather(*map(client, range(67)))
    assert await amounts(budgets) == (posted, 0)
    assert posted > 30_000


async def test_holds_of_a_replica_that_died_are_settled_by_its_journal(server: Server, ledger: Ledger) -> None:
    """What its journal or the ledger knows of is booked, the rest is freed, at once and once; others' holds stay."""
    async def costs(ids: Sequence[str]) -> dict[str, int | None]:
        return {id: 20 for id in ids if id == "in the ledger"}

    org, gates = f"o{next(_orgs)}", [gate("concurrent", 3)]
    dead = RedisBudgets(Link(address(server.url), timeout_s=60.0), "dead", org=org, past=ledger, shut_s=0.0, away="closed")
    lives = RedisBudgets(Link(address(server.url), timeout_s=60.0), "lives", org=org, past=ledger, costs=costs, shut_s=0.0, away="closed")
    await dead.start()
    await lives.start()
    for id in ("in the journal", "in the ledger", "not sent"):
        await dead.hold([account(1_000)], 100, id, MINUTE_US, gates)
    await lives.hold([account(1_000)], 50, "goes on", MINUTE_US)
    await dead._epochs.close()      # without a word to the store
    await dead._link.close()
    lives.bury(["dead", "never was"], {"in the journal": 7})
    for _ in range(1_200):
        if await amounts(lives) == (27, 50):
            break
        await asyncio.sleep(0.05)
    assert await amounts(lives) == (27, 50)
    await lives.hold([account(1_000)], 0, "the places are free", MINUTE_US, gates)
    await lives.close()


async def test_what_an_expired_hold_cost_is_never_free_in_between(server: Server, ledger: Ledger) -> None:
    """Its replica booked it and died before it told the store: nobody gets that money while the ledger is being asked."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def costs(ids: Sequence[str]) -> dict[str, int | None]:
        asked.set()
        await answer.wait()
        return {"booked": 60}

    org, gates = f"o{next(_orgs)}", [gate("concurrent", 2)]
    store = RedisBudgets(Link(address(server.url), timeout_s=5.0), "r1", org=org, past=ledger, costs=costs, shut_s=0.0, away="closed")
    await store.start()
    await store.hold([account(100)], 60, "booked", 50_000, gates)
    await store.hold([account(100)], 10, "never sent", 50_000, gates)
    async with asyncio.timeout(30):
        await asked.wait()
    assert await amounts(store) == (0, 70)
    with pytest.raises(Refused):
        await store.hold([account(100)], 31, "more", MINUTE_US)
    await store.hold([account(100)], 0, "the places are free", MINUTE_US, gates)
    answer.set()
    await once_there_is_room(lambda: store.hold([account(100)], 40, "rest", MINUTE_US))
    assert await amounts(store) == (60, 40)
    await store.close()


async def test_an_expired_hold_that_is_asked_for_again_is_taken_anew(budgets: Budgets) -> None:
    """It stands for its full time, and its place is taken once."""
    gates = [gate("concurrent", 1)]
    await budgets.hold([account(100)], 60, "a", 50_000, gates)
    await once_there_is_room(lambda: budgets.hold([account(100)], 0, "its place is free", 50_000, gates))
    hold = await once_there_is_room(lambda: budgets.hold([account(100)], 70, "a", MINUTE_US, gates))
    assert hold.amount_nanos == 70
    assert await amounts(budgets) == (0, 70)
    await budgets.settle(hold, 5)
    await budgets.hold([account(100)], 95, "b", MINUTE_US, gates)
