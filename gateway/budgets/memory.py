"""Budgets of one process: exact, and forgotten at its end; what was spent comes back from the ledger by `past`.

But for reading an account's past nothing here awaits, so on one event loop every operation is one step. Windows go by the
wall clock, time limits of holds by the monotonic one.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from msgspec.structs import replace

from gateway.budgets import (
    Account,
    AlreadySettled,
    BudgetState,
    Gate,
    Hold,
    Past,
    Refused,
    Settlement,
    StoreAway,
    TooFast,
    Unread,
    no_past,
)  # fmt: skip
from gateway.budgets.windows import Window, window
from gateway.core import clock

_REMEMBERED = 8_192
"""So many settled ids at least, and at most twice as many, are kept to answer a repeated settlement; beyond it the ledger's own
ids guard."""
_FOREVER = 0
"""Start of a window without one."""
_BOOKS = 65_536
"""Accounts kept; beyond it those without a hold are forgotten, and read again when they are used."""
_GATES = 65_536
"""Rate limits remembered; those that are not in debt any more are dropped first."""


@dataclass(slots=True)
class _Book:
    """One account: its window now, and what was spent and is reserved there; windows before it while they hold something."""

    account: Account
    window: Window
    start: int
    spent: int = 0
    held: int = 0
    before: dict[int, list[int]] | None = None


class MemoryBudgets:
    """See `Budgets`. `now_us` is the wall clock in microseconds since the epoch, `steady_us` one that never jumps."""

    mode, problem, pending = "normal", None, 0

    def __init__(
        self, now_us: Callable[[], int] = clock.now_us, past: Past = no_past,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
    ) -> None:  # fmt: skip
        self._now_us, self.past, self._steady_us = now_us, past, steady_us
        self._books: dict[str, _Book] = {}
        self._live: dict[str, Hold] = {}
        self._expiry: list[tuple[int, str]] = []
        self._done: dict[str, int] = {}
        self._done_before: dict[str, int] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, int] = {}
        self._due_most = _GATES
        self._running: dict[str, int] = {}

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def hold(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate] = (),
    ) -> Hold:
        """See `Budgets.hold`."""
        if amount_nanos < 0:
            raise ValueError("a hold is never negative")
        for account in accounts:
            if not self.knows(account):
                await self._read(account)
        return self.take(accounts, amount_nanos, attempt_id, ttl_us, gates)

    def take(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate] = (),
    ) -> Hold:
        """The same in one step, for accounts whose past is known or is nothing."""
        steady = self._drop_expired()
        if attempt_id in self._done or attempt_id in self._done_before:
            raise AlreadySettled(attempt_id)
        if (live := self._live.get(attempt_id)) is not None:
            return live
        now = self._now_us()
        slots, books = [], []
        for account in accounts:
            book = self._book(account, now)
            self._room(account, book, amount_nanos)
            slots.append((account, book.start))
            books.append(book)
        for gate in gates:
            self._pass(gate, steady)
        hold = Hold(attempt_id, amount_nanos, steady + ttl_us, tuple(slots), tuple(gates))
        for gate in gates:
            self._through(gate, steady)
        if self._keep(hold):
            for book in books:
                book.held += amount_nanos
        return hold

    async def extend(self, hold: Hold, amount_nanos: int, ttl_us: int) -> Hold:
        """See `Budgets.extend`."""
        steady = self._drop_expired()
        if self._settled(hold.id) is not None:
            raise AlreadySettled(hold.id)
        live = self._live.get(hold.id)  # None: it expired; take it again in full
        before = live.amount_nanos if live else 0
        total = max(amount_nanos, before)
        if more := total - before:
            for account, start in hold.slots:
                book = self._book(account, self._now_us())
                if book.start == start:  # a window that is over refuses nothing any more
                    self._room(account, book, more)
        raised = replace(hold, amount_nanos=total, expires_us=steady + ttl_us)
        if self._keep(raised):
            for account, start in raised.slots:
                self._move(account.id, start, 0, more)
        return raised

    def post(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> bool:
        """See `Budgets.post`."""
        return self._settle(hold, cost_nanos, tokens).over_hold

    async def settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> Settlement:
        """See `Budgets.settle`."""
        return self._settle(hold, cost_nanos, tokens)

    async def release(self, hold: Hold) -> Settlement:
        """See `Budgets.release`."""
        return self._settle(hold, 0, None)

    async def seed(self, account: Account, spent_nanos: int) -> None:
        """See `Budgets.seed`."""
        self._book(account, self._now_us()).spent = spent_nanos

    async def correct(self, account: Account, correction_id: str, delta_nanos: int, at_us: int) -> None:
        """See `Budgets.correct`."""
        if self._settled(correction_id) is not None or account.id not in self._books:
            return
        book = self._book(account, self._now_us())
        if book.window.holds(at_us):
            book.spent += delta_nanos
            self._remember(correction_id, delta_nanos)

    async def snapshot(self) -> list[BudgetState]:
        """See `Budgets.snapshot`."""
        self._drop_expired()
        now = self._now_us()
        return [state_of(book.account, *self._figures(book, now)) for _, book in sorted(self._books.items())]

    def _figures(self, book: _Book, now: int) -> tuple[int, int, Window]:
        book = self._book(book.account, now)
        return book.spent, book.held, book.window

    def taken_nanos(self, account_id: str) -> int:
        """Spent and held of an account in its present window."""
        book = self._books.get(account_id)
        return 0 if book is None else book.spent + book.held

    # the past

    def knows(self, account: Account) -> bool:
        """Whether `take` may be used for it."""
        book = self._books.get(account.id)
        if book is None:
            return False
        known, rule = book.account.rule, account.rule
        return known is rule or (known.window == rule.window and known.timezone == rule.timezone)

    async def _read(self, account: Account) -> None:
        """Waits until the account's past is read; if that fails, the next call tries again. Calls at once share a reading."""
        reading = self._reading.get(account.id)
        if reading is None:
            reading = self._reading[account.id] = asyncio.create_task(self._begin(account))
            reading.add_done_callback(lambda _: self._reading.pop(account.id, None))
        try:
            await asyncio.shield(reading)
        except Unread as error:
            raise StoreAway("what the budget has spent cannot be read right now") from error

    async def _begin(self, account: Account) -> None:
        span = window(account.rule.window, account.rule.timezone, self._now_us())
        found = await self.past(account, span.starts_us, None, ())
        if len(self._books) >= _BOOKS:
            self._books = {id: book for id, book in self._books.items() if book.held or book.before}
        self._book(account, self._now_us()).spent = found.before

    # one step

    def _book(self, account: Account, now: int) -> _Book:
        """The account's book in its present window."""
        book = self._books.get(account.id)
        if book is None:
            span = window(account.rule.window, account.rule.timezone, now)
            book = self._books[account.id] = _Book(account, span, span.starts_us or _FOREVER)
        elif book.account.rule is not account.rule and book.account.rule != account.rule:
            self._turn(book, window(account.rule.window, account.rule.timezone, now))
            book.account = account
        elif not book.window.holds(now):
            self._turn(book, window(account.rule.window, account.rule.timezone, now))
        return book

    def _turn(self, book: _Book, span: Window) -> None:
        """Begins a window; the one before is kept while it holds something, for holds that reach over its end."""
        if (start := span.starts_us or _FOREVER) != book.start:
            before = {at: kept for at, kept in (book.before or {}).items() if kept[1]}
            if book.held:
                before[book.start] = [book.spent, book.held]
            book.start, (book.spent, book.held) = start, before.pop(start, (0, 0))
            book.before = before or None
        book.window = span

    def _room(self, account: Account, book: _Book, amount: int) -> None:
        """Raises where a budget cannot take the amount."""
        limit, taken = account.rule.limit_nanos, book.spent + book.held
        if account.enforced and (taken >= limit or taken + amount > limit):
            raise Refused(account, book.spent, book.held, amount, book.window)

    def _pass(self, gate: Gate, steady: int) -> None:
        """Raises where a rate limit says no."""
        if gate.kind == "concurrent":
            if self._running.get(gate.id, 0) >= gate.limit:
                raise TooFast(gate, 1_000_000)
            return
        ahead = self._due.get(gate.id, 0) - steady
        if ahead > 0 and (over := ahead + gate.take_us(gate.units) - gate.burst_us) > 0:
            raise TooFast(gate, min(over, ahead))

    def _through(self, gate: Gate, steady: int) -> None:
        if gate.kind == "concurrent":
            self._running[gate.id] = self._running.get(gate.id, 0) + 1
            return
        self._due[gate.id] = max(self._due.get(gate.id, 0), steady) + gate.take_us(gate.units)
        if len(self._due) > self._due_most:  # not at each call, however many are still ahead of their time
            self._due = {id: due for id, due in self._due.items() if due > steady}
            self._due_most = max(_GATES, 2 * len(self._due))

    def _settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None) -> Settlement:
        if (done := self._settled(hold.id)) is not None:
            return Settlement(done, repeated=True)
        self._drop_expired()
        live = self._live.pop(hold.id, None)
        held = (live or hold).amount_nanos
        cost = held if cost_nanos is None else cost_nanos
        for account, start in hold.slots:
            self._move(account.id, start, cost, 0 if live is None else -held)
        if live is not None and live.gates:
            self._end(live.gates)
        for gate in hold.gates:
            if back := gate.back_us(cost, tokens):
                due = self._due.get(gate.id, 0)
                self._due[gate.id] = due - back if back > 0 else max(due, self._steady_us()) - back
        self._remember(hold.id, cost)
        return Settlement(cost, over_hold=cost > held)

    def _remember(self, id: str, nanos: int) -> None:
        self._done[id] = nanos
        if len(self._done) >= _REMEMBERED:     # not one by one: each would cost a walk past those that went before
            self._done_before, self._done = self._done, {}

    def _settled(self, id: str) -> int | None:
        done = self._done.get(id)
        return self._done_before.get(id) if done is None else done

    def _move(self, account_id: str, start: int, spent: int, held: int) -> None:
        """Adds to a window, also to one that is over."""
        book = self._books.get(account_id)
        if book is None:
            return
        if book.start == start:
            book.spent += spent
            book.held += held
        elif book.before and start in book.before:
            book.before[start][0] += spent
            book.before[start][1] += held

    def _keep(self, hold: Hold) -> bool:
        """Remembers a hold until it is settled or its time is over; False: there is nothing to free."""
        if not hold.slots and not any([gate.kind == "concurrent" for gate in hold.gates]):
            return False
        self._live[hold.id] = hold
        heappush(self._expiry, (hold.expires_us, hold.id))
        if len(self._expiry) > 2 * len(self._live) + 1_024:  # those of settled holds
            self._expiry = sorted((live.expires_us, live.id) for live in self._live.values())
        return True

    def _end(self, gates: Sequence[Gate]) -> None:
        """A call that passed these is over."""
        for gate in gates:
            if gate.kind == "concurrent":
                left = self._running.get(gate.id, 1) - 1
                if left > 0:
                    self._running[gate.id] = left
                else:
                    self._running.pop(gate.id, None)

    def _drop_expired(self) -> int:
        """Frees what nobody settled in time. An attempt that settles later is booked all the same. Returns the time."""
        now = self._steady_us()
        while self._expiry and self._expiry[0][0] <= now:
            _, hold_id = heappop(self._expiry)
            live = self._live.get(hold_id)
            if live is not None and live.expires_us <= now:  # else it was settled, or extended since
                del self._live[hold_id]
                for account, start in live.slots:
                    self._move(account.id, start, 0, -live.amount_nanos)
                self._end(live.gates)
        return now


def state_of(account: Account, spent_nanos: int, held_nanos: int, span: Window) -> BudgetState:
    """An account's figures as reports show them."""
    rule = account.rule
    return BudgetState(
        account=account.id, name=rule.name, team=account.payer.team, limit_nanos=rule.limit_nanos, spent_nanos=spent_nanos,
        held_nanos=held_nanos, window=rule.window, starts_us=span.starts_us, ends_us=span.ends_us,
    )  # fmt: skip
