"""Budgets that many replicas share, in Redis or Valkey: one script and one round trip for all budgets and limits of a call.

The store's clock decides; windows are worked out here from it (`calendar.py`). Settlements are sent at once and waited for
by nobody (`posts.py`). While the store is away calls are judged by leases (`leases.py`); when it comes back having forgotten,
a new epoch begins (`epochs.py`).
"""
from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

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
from gateway.budgets.calendar import Calendar
from gateway.budgets.epochs import Costs, Epochs, no_costs
from gateway.budgets.leases import Leases
from gateway.budgets.limits import MOST_NANOS
from gateway.budgets.memory import state_of
from gateway.budgets.posts import REMEMBER_MS, Post, Posts
from gateway.redis_link import Away as LinkAway
from gateway.redis_link import Link
from gateway.redis_link import Refused as LinkRefused

_TRIES = 6
_OPENING_S = 2.5
_RECENT_US = 20 * 60 * 1_000_000
"""Longer than a hold or a lease lasts: older attempts have been settled, or were asserted."""
_PART = 2_000
"""Words of one script call."""
_COMING_S = 0.4
"""How long a call waits for a store that may be coming back, where it could only be refused otherwise."""


class RedisBudgets:
    """See `Budgets`. `replica` is this process's name among those that share the store."""

    def __init__(
        self, link: Link, replica: str, *, org: str = "default", past: Past = no_past, costs: Costs = no_costs,
        away: Literal["lease", "closed"] = "lease", shut_s: float = 2.0, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._link, self._past, self._away, self._clock = link, past, away, clock
        self._leases = Leases(clock)
        self._live: dict[str, Hold] = {}
        self._local: set[str] = set()
        """Those of them that were taken within a lease and that the store does not know yet."""
        self._known: dict[str, Account] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._calendar = Calendar()
        self._epochs = Epochs(
            link, replica, org, shut_s=shut_s, leases=self._leases if away == "lease" else None, costs=costs, book=self,
            calendar=self._calendar,
        )
        self._posts = Posts(link, self._epochs)
        link.attach(self._epochs.greet, self._epochs.up, self._lost)

    async def start(self) -> None:
        """Connects; a store that is not there keeps nobody from starting."""
        await self._link.start()
        self._epochs.start()

    async def close(self) -> None:
        """Waits a little until the store has been told everything."""
        with contextlib.suppress(LinkAway, LinkRefused):
            await self._link.call("PING")  # answers come in order: those of all settlements are here before it
            await self._epochs.leave()
        await self._epochs.close()
        await self._link.close()

    def bury(self, replicas: Sequence[str], costs: Mapping[str, int | None]) -> None:
        """These replicas are known to be dead, by the locks on their journals, and `costs` is what stands in those that the
        ledger may not have yet: their holds are settled to it, or to what the ledger says, else freed."""
        for replica in replicas:
            self._epochs.bury(replica, costs)

    @property
    def mode(self) -> str:
        """`normal`, `lease` or `closed`."""
        return "normal" if self._epochs.open else self._away

    @property
    def problem(self) -> str | None:
        """Why the mode is not normal."""
        if self._epochs.open:
            return None
        return self._link.problem or "the store has lost its memory; waiting for all replicas to say what is under way"

    @property
    def pending(self) -> int:
        """Settlements that the store has not confirmed."""
        return len(self._posts)

    @property
    def live(self) -> list[Hold]:
        """Holds of calls that are under way here."""
        return list(self._live.values())

    # Budgets

    async def hold(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate] = (),
    ) -> Hold:
        """See `Budgets.hold`."""
        if not 0 <= amount_nanos <= MOST_NANOS:
            raise ValueError("a hold is never negative, and below 2^53 nano-dollars")
        for _ in range(_TRIES):
            if not self._epochs.open:
                if (hold := await self._without(accounts, amount_nanos, attempt_id, ttl_us, gates)) is not None:
                    return hold
                continue
            try:
                words = len(accounts), len(gates), *self._account_words(accounts), *_gate_words(gates)
                word, answer = await self._ask("hold", attempt_id, amount_nanos, ttl_us, self._epochs.replica, *words)
            except LinkAway:
                self._epochs.suspect()
                continue
            if word == b"ok":
                slots = self._calendar.slots(accounts)
                return self._took(Hold(attempt_id, amount_nanos, int(answer[1]), slots, tuple(gates)))
            if word == b"again":
                return self._took(_held(attempt_id, answer[0], accounts, gates))
            await self._not_yet(word, answer, accounts, amount_nanos, attempt_id, gates)
        raise StoreAway

    async def extend(self, hold: Hold, amount_nanos: int, ttl_us: int) -> Hold:
        """See `Budgets.extend`."""
        amount = max(amount_nanos, hold.amount_nanos)
        for _ in range(_TRIES):
            if not self._epochs.open:
                return await self._extend_without(hold, amount)
            words: list[str | int] = []
            for account, start in hold.slots:
                words += (account.book, start, account.rule.limit_nanos, int(account.enforced))
            try:
                word, answer = await self._ask("extend", hold.id, amount, ttl_us, self._epochs.replica, len(hold.slots), *words)
            except LinkAway:
                self._epochs.suspect()
                continue
            if word == b"ok":
                raised = Hold(hold.id, int(answer[0]), int(answer[1]), hold.slots, hold.gates)
                return raised if hold.id in self._posts else self._took(raised)  # it may have been settled meanwhile
            accounts = [account for account, _ in hold.slots]
            await self._not_yet(word, answer, accounts, amount - hold.amount_nanos, hold.id, ())
        raise StoreAway

    def post(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> bool:
        """See `Budgets.post`."""
        self._post(Post(hold, cost_nanos, tokens))
        return cost_nanos is not None and cost_nanos > hold.amount_nanos

    async def settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> Settlement:
        """See `Budgets.settle`. While the store is away the answer is ours."""
        post = Post(hold, cost_nanos, tokens, asyncio.get_running_loop().create_future())
        self._post(post)
        assert post.told is not None
        return await asyncio.shield(post.told)

    async def release(self, hold: Hold) -> Settlement:
        """See `Budgets.release`."""
        return await self.settle(hold, 0)

    async def seed(self, account: Account, spent_nanos: int) -> None:
        """See `Budgets.seed`."""
        self._known[account.id] = account
        await self._plain("seed", account.book, self._calendar.start_us(account), spent_nanos)

    async def correct(self, account: Account, correction_id: str, delta_nanos: int, at_us: int) -> None:
        """See `Budgets.correct`."""
        if self._calendar.window(account).holds(at_us):
            start_us = self._calendar.start_us(account)
            await self._plain("correct", account.book, start_us, correction_id, delta_nanos, REMEMBER_MS)

    async def snapshot(self) -> list[BudgetState]:
        """See `Budgets.snapshot`."""
        if not self._epochs.open and not (self._link.up and await self._epochs.opens(_OPENING_S)):
            raise StoreAway
        with contextlib.suppress(LinkAway, LinkRefused):
            seconds, micros = await self._link.call("TIME")
            self._calendar.tell(int(seconds) * 1_000_000 + int(micros))
        try:
            return await asyncio.gather(*(self._state(account) for _, account in sorted(self._known.items())))
        except (LinkAway, LinkRefused) as error:
            raise StoreAway from error

    async def _state(self, account: Account) -> BudgetState:
        span = self._calendar.window(account)
        start, key = span.starts_us or 0, self._epochs.key(f"b:{account.book}")
        spent, held = await self._link.call("HMGET", key, f"{start}:s", f"{start}:h")
        return state_of(account, int(spent or 0), int(held or 0), span)

    # while it is away

    def _lost(self) -> None:
        self._epochs.lost()
        self._posts.answer_all()

    async def _without(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate]
    ) -> Hold | None:
        """A hold that needs no store; None: the store is there again, ask it. Raises `StoreAway`, `TooFast`."""
        if (live := self._live.get(attempt_id)) is not None:
            return live
        if self._away == "lease" or not any(account.enforced for account in accounts):
            with contextlib.suppress(StoreAway):
                hold = self._leases.take(accounts, amount_nanos, attempt_id, ttl_us, gates, self._epochs.replicas)
                self._local.add(attempt_id)
                slots, expires_us = self._calendar.slots(accounts), self._calendar.now_us() + ttl_us
                return self._took(replace(hold, slots=slots, expires_us=expires_us))
        wait_s = _OPENING_S if self._link.up else _COMING_S if self._away == "closed" else 0.0
        if wait_s and await self._epochs.opens(wait_s):
            return None
        raise StoreAway

    async def _extend_without(self, hold: Hold, amount_nanos: int) -> Hold:
        if (more := amount_nanos - hold.amount_nanos) > 0:
            self._leases.more(hold, more)
        return self._took(Hold(hold.id, amount_nanos, hold.expires_us, hold.slots, hold.gates))

    def rejoin(self, *, renewed: bool) -> None:
        """The store takes calls again: tells it what it does not know, in one step and before any new call."""
        for hold in self.live:
            if renewed or hold.id in self._local:
                self._epochs.assert_hold(hold, partial(self._local.discard, hold.id))
        self._posts.send_all()

    def unsettled(self) -> list[Hold]:
        """Holds whose end the store may not have heard of: calls under way, and settlements on their way."""
        return [*self._live.values(), *self._posts.holds()]

    def forget_old(self) -> None:
        """Holds that nobody settled an hour after their time."""
        old = self._calendar.now_us() - 3_600_000_000
        for hold in self.live:
            if hold.expires_us < old and hold.id not in self._local:
                del self._live[hold.id]

    # settlements

    def _post(self, post: Post) -> None:
        hold = post.hold
        if self._live.pop(hold.id, None) is not None and self._away == "lease":
            self._leases.held(hold, -hold.amount_nanos)
            self._leases.spent(hold, post.came_to_nanos)
        self._leases.over(hold, post.cost_nanos, post.tokens)
        self._local.discard(hold.id)
        self._posts.put(post)

    # asking

    async def _ask(self, script: str, id: str, *words: str | int) -> tuple[bytes, list[Any]]:
        """Raises `LinkAway`; an answer that is no answer ends the connection."""
        try:
            reply = await self._epochs.run(script, id, *words)
        except LinkRefused as error:
            self._link.drop(str(error))
            raise LinkAway(str(error)) from error
        if reply[0] != id.encode():
            self._link.drop("an answer to another question")
            raise LinkAway("an answer to another question")
        return reply[1], reply[2:]

    async def _plain(self, script: str, *words: str | int) -> None:
        """A script whose answer is one word. Raises `StoreAway`."""
        for _ in range(_TRIES):
            if not self._epochs.open and not await self._epochs.opens(_OPENING_S):
                break
            with contextlib.suppress(LinkAway):
                if await self._epochs.run(script, *words) != b"epoch":
                    return
                self._epochs.forgot()
        raise StoreAway

    async def _not_yet(
        self, word: bytes, answer: list[Any], accounts: Sequence[Account], amount_nanos: int, id: str, gates: Sequence[Gate]
    ) -> None:
        """Does what the store needs before it can be asked again, or raises why it never will say yes."""
        if word == b"full":
            account, spent, held = accounts[int(answer[0]) - 1], int(answer[1]), int(answer[2])
            self._known[account.id] = account       # whoever looks at the budgets wants to see this one
            if not (self._leases.give_back(account) and self._epochs.drop_lease(account)):
                raise Refused(account, spent, held, amount_nanos, self._calendar.window(account))
        elif word == b"fast":
            raise TooFast(gates[int(answer[0]) - 1], int(answer[1]))
        elif word == b"done":
            raise AlreadySettled(id)
        elif word == b"seed":
            await self._read(accounts[int(answer[0]) - 1])
        elif word == b"window":
            self._calendar.tell(int(answer[0]))
        elif word == b"shut":
            self._epochs.shut()
        else:
            self._epochs.forgot()

    def _took(self, hold: Hold) -> Hold:
        before = self._live.get(hold.id)
        self._live[hold.id] = hold
        for account, _ in hold.slots:
            self._known[account.id] = account
        if self._away == "lease":
            self._leases.held(hold, hold.amount_nanos - (before.amount_nanos if before else 0))
        return hold

    # an account's past

    async def _read(self, account: Account) -> None:
        """Waits until somebody has told the store what the account spent. Calls at once share a reading."""
        reading = self._reading.get(account.book)
        if reading is None:
            reading = self._reading[account.book] = asyncio.create_task(self._begin(account))
            reading.add_done_callback(lambda _: self._reading.pop(account.book, None))
        try:
            await asyncio.shield(reading)
        except (Unread, LinkAway, LinkRefused) as error:
            raise StoreAway("what the budget has spent cannot be read right now") from error

    async def _begin(self, account: Account) -> None:
        """Calls that were under way when the store forgot are left out, however old: they count when they are settled."""
        under_way: list[bytes] = await self._link.call("SMEMBERS", self._epochs.key("a"))
        start, recent = self._calendar.window(account).starts_us, self._calendar.now_us() - _RECENT_US
        before, attempts = await self._past(account, start, recent, [id.decode() for id in under_way])
        words = [word for pair in attempts.items() for word in pair]
        for at in range(0, max(len(words), 1), _PART):
            last = int(at + _PART >= len(words))
            await self._epochs.run("begin", account.book, start or 0, last, before, *words[at : at + _PART])

    def _account_words(self, accounts: Sequence[Account]) -> list[str | int]:
        words: list[str | int] = []
        for account in accounts:
            span = self._calendar.window(account)
            words += (account.book, span.starts_us or 0, span.ends_us or 0, account.rule.limit_nanos, int(account.enforced))
        return words


def _gate_words(gates: Sequence[Gate]) -> list[str | int]:
    words: list[str | int] = []
    for gate in gates:
        size = gate.limit if gate.kind == "concurrent" else gate.take_us(gate.units)
        words += (gate.id, gate.kind, size, 0 if gate.kind == "concurrent" else gate.burst_us)
    return words


def _held(id: str, text: bytes, accounts: Sequence[Account], gates: Sequence[Gate]) -> Hold:
    """A hold as the store keeps it."""
    amount, expires, _, *lines = text.decode().split("\n")
    starts = {name: int(start) for kind, name, start in (line.split(" ") for line in lines) if kind == "m"}
    slots = tuple([(account, starts[account.book]) for account in accounts if account.book in starts])
    return Hold(id, int(amount), int(expires), slots, tuple(gates))
