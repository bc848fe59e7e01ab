"""Memory and Redis do the same, whatever is asked of them in whatever order: the contract's C16 for holds."""
from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.budgets import Account, AlreadySettled, BudgetRule, Budgets, Gate, Hold, Payer, Refused, TooFast
from gateway.budgets.memory import MemoryBudgets
from gateway.budgets.redis import RedisBudgets
from gateway.redis_link import Link, address
from tests.redis_server import Server

PAYERS = [Payer(team="alpha", key_id="k1"), Payer(team="alpha", key_id="k2"), Payer(team="beta", key_id="k3")]
RULES = [
    BudgetRule(name="total", limit_nanos=1_000, window="total"), BudgetRule(name="key", limit_nanos=300, window="total", scope="key"),
    BudgetRule(name="month", limit_nanos=2_000, window="month", timezone="Asia/Kathmandu"), BudgetRule(name="seen", limit_nanos=10, window="total", on_exhausted="alert"),
]  # fmt: skip
HOUR_US = 3_600_000_000
_orgs = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def accounts(payer: Payer, rules: int) -> list[Account]:
    found = (each.account(payer) for each in RULES[:rules])
    return [account for account in found if account is not None]


class Machine(RuleBasedStateMachine):
    """Both stores, the books of the clients, and the ids in use."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stores: list[Budgets] = self.run(self._open())
        self.live: dict[str, list[Hold]] = {}
        self.done: list[list[Hold]] = []
        self.booked: dict[str, int] = defaultdict(int)
        self.running: dict[str, int] = defaultdict(int)
        self.number = 0

    async def _open(self) -> list[Budgets]:
        redis = RedisBudgets(Link(address(self.url), timeout_s=5.0), "r1", org=f"m{next(_orgs)}", shut_s=0.0, away="closed")
        await redis.start()
        return [MemoryBudgets(), redis]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def both(self, ask: Any) -> list[Any]:
        """The same question to both; answers or refusals."""

        async def one(index: int) -> Any:
            try:
                return await ask(index, self.stores[index])
            except (Refused, TooFast, AlreadySettled) as no:
                return no

        async def all_() -> list[Any]:
            return [await one(0), await one(1)]

        found: list[Any] = self.run(all_())
        assert type(found[0]) is type(found[1]), found
        if isinstance(found[0], Refused):
            figures = [(no.rule.name, no.spent_nanos, no.held_nanos) for no in found]
            assert figures[0] == figures[1]
        return found

    def chosen(self, pick: int) -> tuple[str, list[Hold]] | None:
        return list(self.live.items())[pick % len(self.live)] if self.live else None

    @rule(payer=st.sampled_from(PAYERS), rules=st.integers(1, 4), amount=st.integers(0, 200), places=st.integers(0, 3))
    def hold(self, payer: Payer, rules: int, amount: int, places: int) -> None:
        self.number += 1
        id = f"a{self.number}"
        gates = [Gate(f"{payer.team}/c", "concurrent", places, 1, "so many at once")] if places else []
        found = self.both(lambda _, store: store.hold(accounts(payer, rules), amount, id, HOUR_US, gates))
        if isinstance(found[0], Hold):
            self.live[id] = found

    @rule(pick=st.integers(0, 99))
    def again(self, pick: int) -> None:
        if (chosen := self.chosen(pick)) is not None:
            id, holds = chosen
            asked = [account for account, _ in holds[0].slots]
            found = self.both(lambda _, store: store.hold(asked, 1, id, HOUR_US))
            assert [hold.amount_nanos for hold in found] == [hold.amount_nanos for hold in holds]

    @rule(pick=st.integers(0, 99), more=st.integers(-50, 300))
    def extend(self, pick: int, more: int) -> None:
        if (chosen := self.chosen(pick)) is not None:
            id, holds = chosen
            found = self.both(lambda n, store: store.extend(holds[n], max(holds[n].amount_nanos + more, 0), HOUR_US))
            if isinstance(found[0], Hold):
                assert found[0].amount_nanos == found[1].amount_nanos
                self.live[id] = found

    @rule(pick=st.integers(0, 99), cost=st.one_of(st.none(), st.integers(0, 400)), waits=st.booleans())
    def settle(self, pick: int, cost: int | None, waits: bool) -> None:
        if (chosen := self.chosen(pick)) is None:
            return
        id, holds = chosen

        async def ask(n: int, store: Budgets) -> Any:
            return await store.settle(holds[n], cost) if waits else store.post(holds[n], cost)

        found = self.both(ask)
        assert found[0] == found[1]
        del self.live[id]
        self.done.append(holds)
        for account, _ in holds[0].slots:
            self.booked[account.id] += holds[0].amount_nanos if cost is None else cost

    @rule(pick=st.integers(0, 99), cost=st.integers(0, 400))
    def settle_again(self, pick: int, cost: int) -> None:
        if self.done:
            holds = self.done[pick % len(self.done)]
            found = self.both(lambda n, store: store.settle(holds[n], cost))
            assert found[0].repeated
            assert found[1].repeated
            asked = [account for account, _ in holds[0].slots]
            assert isinstance(self.both(lambda _, store: store.hold(asked, 1, holds[0].id, HOUR_US))[0], AlreadySettled)

    @invariant()
    def books_agree(self) -> None:
        found = self.both(lambda _, store: store.snapshot())
        seen = [{s.account: (s.spent_nanos, s.held_nanos) for s in each if s.spent_nanos or s.held_nanos} for each in found]
        assert seen[0] == seen[1]
        for each in found[0]:
            held = sum(hold.amount_nanos for hold, _ in self.live.values() if each.account in {a.id for a, _ in hold.slots})
            assert (each.spent_nanos, each.held_nanos) == (self.booked[each.account], held)

    def teardown(self) -> None:
        self.run(self.stores[1].close())
        self.runner.close()


def test_memory_and_redis_are_one_machine(server: Server) -> None:
    """Holds, repetitions, extensions, settlements, late and doubled: same answers, same figures, and the clients' own sum."""
    Machine.url = server.url
    relaxed = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=relaxed)  # type: ignore[no-untyped-call]
