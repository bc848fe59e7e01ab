"""Budgets of one process: exact, and forgotten at its end; what was spent comes back from the ledger by `seed`.

Nothing here awaits, so on one event loop every operation is one step.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from gateway.budgets import AlreadySettled, BudgetRule, BudgetState, Hold, Refused, Settlement
from gateway.budgets.windows import Window, window
from gateway.core.call import Tenant

_REMEMBERED = 65_536
"""Settled ids kept to answer a repeated settlement; beyond it the ledger's own ids guard."""
_FOREVER = -(2**62)
"""Start of a window without one."""


@dataclass(slots=True)
class _Counter:
    """What one account spent and has reserved in one window, nano-dollars."""

    spent: int = 0
    held: int = 0


@dataclass(slots=True)
class _Known:
    """The last rule seen for an account, and its present window."""

    rule: BudgetRule
    team: str
    window: Window


class MemoryBudgets:
    """See `Budgets`. `now_us` is the clock: microseconds since the epoch."""

    def __init__(self, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now_us = now_us
        self._counters: dict[tuple[str, int], _Counter] = {}
        self._known: dict[str, _Known] = {}
        self._live: dict[str, Hold] = {}
        self._expiry: list[tuple[int, str]] = []
        self._done: dict[str, int] = {}

    async def hold(
        self, tenant: Tenant, rules: Sequence[BudgetRule], amount_nanos: int, attempt_id: str, expires_us: int,
    ) -> Hold:
        """Reserves the amount in all budgets or in none; see `Budgets.hold`."""
        if amount_nanos < 0:
            raise ValueError("a hold is never negative")
        now = self._drop_expired()
        if attempt_id in self._done:
            raise AlreadySettled(attempt_id)
        if attempt_id in self._live:
            return self._live[attempt_id]
        slots = tuple(self._slot(tenant, rule, now) for rule in rules)
        self._room(rules, slots, amount_nanos)
        hold = Hold(id=attempt_id, amount_nanos=amount_nanos, expires_us=expires_us, slots=slots)
        self._put(hold, amount_nanos)
        return hold

    async def extend(self, hold: Hold, rules: Sequence[BudgetRule], amount_nanos: int, expires_us: int) -> Hold:
        """Raises a live hold to a new total and expiry; see `Budgets.extend`."""
        self._drop_expired()
        if hold.id in self._done:
            raise AlreadySettled(hold.id)
        live = self._live.get(hold.id)              # None: it expired; take it again in full
        before = live.amount_nanos if live else 0
        total = max(amount_nanos, before)
        if more := total - before:
            self._room(rules, hold.slots, more)
        raised = replace(hold, amount_nanos=total, expires_us=expires_us)
        self._put(raised, more)
        return raised

    async def settle(self, hold: Hold, cost_nanos: int | None) -> Settlement:
        """Books the cost in every budget of the hold; see `Budgets.settle`."""
        if hold.id in self._done:
            return Settlement(self._done[hold.id], repeated=True)
        self._drop_expired()
        live = self._take(hold.id)
        held = (live or hold).amount_nanos
        cost = held if cost_nanos is None else cost_nanos
        for slot in hold.slots:
            self._counter(slot).spent += cost
        self._done[hold.id] = cost
        if len(self._done) > _REMEMBERED:
            del self._done[next(iter(self._done))]
        return Settlement(cost, over_hold=cost > held)

    async def release(self, hold: Hold) -> Settlement:
        """Frees the hold and books nothing; see `Budgets.release`."""
        return await self.settle(hold, 0)

    async def seed(self, tenant: Tenant, rule: BudgetRule, spent_nanos: int) -> None:
        """Sets what was spent in the present window; see `Budgets.seed`."""
        self._counter(self._slot(tenant, rule, self._drop_expired())).spent = spent_nanos

    async def snapshot(self) -> list[BudgetState]:
        """Every known budget in its present window, by account."""
        now = self._drop_expired()
        states = []
        for account, known in sorted(self._known.items()):
            span = self._window(known, now)
            counter = self._counters.get((account, _start(span)), _Counter())
            states.append(BudgetState(
                account=account, name=known.rule.name, team=known.team, limit_nanos=known.rule.limit_nanos,
                spent_nanos=counter.spent, held_nanos=counter.held, window=known.rule.window,
                starts_us=span.starts_us, ends_us=span.ends_us,
            ))
        return states

    def _slot(self, tenant: Tenant, rule: BudgetRule, now: int) -> tuple[str, int]:
        account = rule.account(tenant)
        known = self._known.get(account)
        if known is None or known.rule != rule:
            known = self._known[account] = _Known(rule, tenant.team, window(rule.window, rule.timezone, now))
        return account, _start(self._window(known, now))

    def _window(self, known: _Known, now: int) -> Window:
        """The present window; when a new one begins, windows of the account that hold nothing are forgotten."""
        if not known.window.holds(now):
            known.window = window(known.rule.window, known.rule.timezone, now)
            self._counters = {slot: counter for slot, counter in self._counters.items() if counter.held or not self._past(slot)}
        return known.window

    def _past(self, slot: tuple[str, int]) -> bool:
        return slot[1] != _FOREVER and slot[1] < _start(self._known[slot[0]].window)

    def _room(self, rules: Sequence[BudgetRule], slots: Sequence[tuple[str, int]], amount: int) -> None:
        """Raises where a budget cannot take the amount. Nothing is changed."""
        for rule, slot in zip(rules, slots, strict=True):
            counter = self._counters.get(slot) or _Counter()
            taken = counter.spent + counter.held
            if taken >= rule.limit_nanos or taken + amount > rule.limit_nanos:
                raise Refused(rule, counter.spent, counter.held, amount, self._known[slot[0]].window)

    def _counter(self, slot: tuple[str, int]) -> _Counter:
        counter = self._counters.get(slot)
        if counter is None:
            counter = self._counters[slot] = _Counter()
        return counter

    def _put(self, hold: Hold, more: int) -> None:
        self._live[hold.id] = hold
        heappush(self._expiry, (hold.expires_us, hold.id))
        for slot in hold.slots:
            self._counter(slot).held += more

    def _take(self, hold_id: str) -> Hold | None:
        hold = self._live.pop(hold_id, None)
        if hold is not None:
            for slot in hold.slots:
                self._counter(slot).held -= hold.amount_nanos
        return hold

    def _drop_expired(self) -> int:
        """Frees what nobody settled in time. An attempt that settles later is booked all the same. Returns the time."""
        now = self._now_us()
        while self._expiry and self._expiry[0][0] <= now:
            _, hold_id = heappop(self._expiry)
            live = self._live.get(hold_id)
            if live is not None and live.expires_us <= now:      # else it was settled, or extended since
                self._take(hold_id)
        return now


def _start(span: Window) -> int:
    return _FOREVER if span.starts_us is None else span.starts_us
