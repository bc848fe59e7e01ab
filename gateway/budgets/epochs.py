"""Which life of the store it is, who shares it, and what has to be told to one that forgot.

An epoch ends when the server is another process (its run id changed: it may have lost what it was told last) or has no
memory of the epoch (it was emptied). The first replica that notices begins a new one. Nobody is admitted before every known
replica has asserted its calls under way, or for two seconds. Accounts begin anew with what the ledger says, without the
asserted calls, whose cost is booked when they settle: set, never added, so nothing counts twice.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.budgets import Account, Hold
from gateway.budgets.calendar import Calendar
from gateway.budgets.leases import TTL_S, Leases
from gateway.budgets.scripts import digest, texts
from gateway.redis_link import Away, Link, Refused

Costs = Callable[[Sequence[str]], Awaitable[Mapping[str, int | None]]]
"""What the ledger says these attempts cost, those that it knows; it is brought up to date first. May raise `Unread`."""
_BEAT_S = 1.0
_POLL_S = 0.05
_LOOK_EVERY = 5
_HOPELESS_US = 86_400_000_000
_LATE_US = 30_000_000
"""An asserted hold stands at least this long."""
_log = logging.getLogger("tollway.budgets")


async def no_costs(ids: Sequence[str]) -> Mapping[str, int | None]:
    return {}


class Book(Protocol):
    """What is known here and the store may have to be told."""

    def unsettled(self) -> list[Hold]: ...

    def rejoin(self, *, renewed: bool) -> None: ...

    def forget_old(self) -> None: ...


class Epochs:
    """`open` says whether calls are judged by the store."""

    def __init__(
        self, link: Link, replica: str, org: str, *, shut_s: float, leases: Leases | None, costs: Costs, book: Book,
        calendar: Calendar,
    ) -> None:  # fmt: skip
        self.replica = replica
        self.open = False
        self.id = ""
        self._base = f"tollway:{{{org}}}:"
        self._link, self._leases, self._costs, self._book, self._calendar = link, leases, costs, book, calendar
        self._shut_us = int(shut_s * 1e6)
        self._peers: set[str] = set()
        self._renewed = False
        self._wait_us = 0
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._entering: asyncio.Task[None] | None = None
        self._beats = 0
        self._dead: dict[str, Mapping[str, int | None]] = {}
        self._burying: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> int:
        return max(len(self._peers), 1)

    def key(self, rest: str) -> str:
        return f"{self._base}{self.id}:{rest}"

    def run(self, script: str, *words: str | int) -> asyncio.Future[Any]:
        """Runs a script in this epoch. Raises `Away` at once where there is no connection."""
        return self._link.call("EVALSHA", digest(script), 1, self._base, self.id, *words)

    def start(self) -> None:
        self._spawn(self._beat())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def leave(self) -> None:
        """Gives back what was drawn ahead, and is gone."""
        with contextlib.suppress(Away, Refused):
            for account, _ in self._leases.standing() if self._leases else ():
                self.drop_lease(account)
            await self._link.call("ZREM", f"{self._base}replicas", self.replica)

    # opening

    async def greet(self, link: Link) -> None:
        """On each new connection, before anything else goes down it."""
        await asyncio.gather(*(link.greeting("SCRIPT", "LOAD", text) for text in texts().values()))
        await self._enter(link.greeting)

    def up(self) -> None:
        """The connection may be used."""
        self._go_on()

    async def _enter(self, call: Callable[..., asyncio.Future[Any]]) -> None:
        known = sorted(self._peers | {self.replica})
        id, wait = await call(
            "EVALSHA", digest("enter"), 1, self._base, secrets.token_hex(4), self._link.run_id, self._shut_us, self.replica,
            int(bool(self._peers)), *known,
        )  # fmt: skip
        before, self.id, self._wait_us = self.id, id.decode(), int(wait)
        if self.id == before:
            return
        self._renewed = bool(before)
        if before:
            _log.warning("the budget store forgot: a new epoch begins, spend is read from the ledger")
            await asyncio.gather(*(self._assert(call, hold) for hold in self._book.unsettled()))
            for account, amount in self._leases.standing() if self._leases else ():
                await self._assert(call, self._lease_hold(account, amount))
            self._spawn(self._asserted())
        else:
            await call("EVALSHA", digest("asserted"), 1, self._base, self.id, self.replica)

    def _go_on(self) -> None:
        """Opens, or waits until the epoch does."""
        if self._wait_us:
            self._spawn(self._wait())
            return
        renewed, self._renewed = self._renewed, False
        self._book.rejoin(renewed=renewed)
        for account, left in self._leases.end() if self._leases else ():
            if not left:
                self.drop_lease(account)
            else:
                with contextlib.suppress(Away):
                    self._ask_lease(account, left, left)
        self.open = True
        self._opened.set()
        if self._leases is not None:
            self._spawn(self._draw(self._leases))

    async def _wait(self) -> None:
        """Until the epoch is open for all."""
        with contextlib.suppress(Away, Refused):
            while self._wait_us:
                await asyncio.sleep(min(self._wait_us / 1e6, _POLL_S))
                await self._enter(self._link.call)
            self._go_on()

    async def _asserted(self) -> None:
        """What the store had confirmed before it forgot must be in the ledger before accounts are read from it."""
        with contextlib.suppress(Away, Refused):
            with contextlib.suppress(Exception):
                await self._costs(())
            await self.run("asserted", self.replica)

    async def opens(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._opened.wait()
        return self.open

    # closing

    def lost(self) -> None:
        """The connection is gone."""
        self._close()

    def suspect(self) -> None:
        """A call was not answered; the link has closed the connection by now."""
        if not self._link.up:
            self._close()

    def shut(self) -> None:
        """The store says that the epoch is not open."""
        self.forgot()

    def forgot(self) -> None:
        """The store does not know our epoch: enters it anew, once."""
        self._close()
        if self._entering is None or self._entering.done():
            self._entering = self._spawn(self._reenter())

    async def _reenter(self) -> None:
        with contextlib.suppress(Away, Refused):
            await self._enter(self._link.call)
            self._go_on()

    def _close(self) -> None:
        if self.open:
            self.open = False
            self._opened.clear()

    # telling

    def assert_hold(self, hold: Hold, told: Callable[[], None]) -> None:
        """Without waiting; what comes after it on the connection is judged after it. `told`: called when the store knows it."""

        def answered(answer: asyncio.Future[Any]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                told()

        with contextlib.suppress(Away):
            self._assert(self._link.call, hold).add_done_callback(answered)

    def _assert(self, call: Callable[..., asyncio.Future[Any]], hold: Hold) -> asyncio.Future[Any]:
        lines = [f"\nm {account.book} {start}" for account, start in hold.slots]
        lines += [f"\nc {gate.id} 0" for gate in hold.gates if gate.kind == "concurrent"]
        return call(
            "EVALSHA", digest("assert"), 1, self._base, self.id, hold.id, hold.amount_nanos, hold.expires_us, _LATE_US,
            self.replica, "".join(lines),
        )  # fmt: skip

    def _lease_hold(self, account: Account, amount_nanos: int) -> Hold:
        start = self._calendar.start_us(account)
        return Hold(self._lease_id(account), amount_nanos, 0, ((account, start),))

    def _lease_id(self, account: Account) -> str:
        return f"lease:{self.replica}:{account.book}"

    def drop_lease(self, account: Account) -> bool:
        """Gives it back, in order with what is asked next."""
        if self._leases is not None:
            self._leases.drawn(account, 0)
        with contextlib.suppress(Away):
            self.run("drop", self._lease_id(account))
            return True
        return False

    # once a second

    async def _beat(self) -> None:
        while True:
            await self._opened.wait()
            self._beats += 1
            with contextlib.suppress(Away, Refused):
                id, _, peers, expired, held = await self.run("beat", self.replica)
                if id.decode() == self.id:
                    self._peers = {peer.decode() for peer in peers}
                    await self._upkeep([item.decode() for item in expired], int(held))
                else:
                    self.forgot()
            await asyncio.sleep(_BEAT_S)

    async def _upkeep(self, expired: Sequence[str], held: int) -> None:
        """`held`: of the expired holds that nobody has looked up yet, whose money waits for that."""
        if (held or (expired and self._beats % _LOOK_EVERY == 0)) and (self._looking is None or self._looking.done()):
            self._looking = self._spawn(self._look_up(expired))
        if self._dead and (self._burying is None or self._burying.done()):
            self._burying = self._spawn(self._settle_dead())
        if self._leases is not None:
            await self._draw(self._leases)
        self._book.forget_old()

    def bury(self, replica: str, costs: Mapping[str, int | None]) -> None:
        """See `RedisBudgets.bury`."""
        self._dead[replica] = costs

    async def _settle_dead(self) -> None:
        for replica, booked in list(self._dead.items()):
            with contextlib.suppress(Away, Refused):
                word, *items = await self.run("owned", replica)
                holds = [item.decode().split("\n") for item in items]
                try:
                    known = {**await self._costs([id for id, *_ in holds if id not in booked]), **booked} if holds else {}
                except Exception as error:  # the ledger is away: later
                    _log.info("holds of a replica that died cannot be looked up: %s", error)
                    continue
                for id, amount, _, _, *lines in holds:
                    if id in known:
                        self._settle(id, known[id], amount, lines)
                    else:                   # nothing was sent under it
                        self.run("drop", id)
                if word == b"ok":
                    await self._link.call("ZREM", f"{self._base}replicas", replica)
                    del self._dead[replica]
                    _log.warning("%d holds of a replica that died were settled to what its journal says", len(holds))

    def _settle(self, id: str, cost: int | None, amount: str, lines: Sequence[str]) -> None:
        slots = [line.split(" ")[1:] for line in lines if line.startswith("m ")]
        words = [word for slot in slots for word in slot]
        self.run("settle", id, "" if cost is None else cost, amount, 7_200_000, len(slots), 0, *words)

    async def _draw(self, leases: Leases) -> None:
        with contextlib.suppress(Away, Refused):
            for account, want in leases.wanted():
                word, *answer = await self._ask_lease(account, want, leases.asks(account, want))
                if word == b"ok":
                    leases.drawn(account, int(answer[0]))

    def _ask_lease(self, account: Account, want_nanos: int, least_nanos: int) -> asyncio.Future[Any]:
        """A lease of that size in place of the one before, of which at least so much stays."""
        span = self._calendar.window(account)
        return self.run(
            "lease", self._lease_id(account), self.replica, int(TTL_S * 1e6), account.book, span.starts_us or 0,
            span.ends_us or 0, account.rule.limit_nanos, want_nanos, least_nanos,
        )  # fmt: skip

    async def _look_up(self, items: Sequence[str]) -> None:
        """Holds that expired: their replica died, or forgot. What the ledger knows of them is booked, the rest is freed; what
        it does not know yet is looked up again, for a day."""
        by_id = {item.partition("\n")[0]: item for item in items}
        with contextlib.suppress(Away, Refused):
            seconds, _ = await self._link.call("TIME")
            try:
                costs = await self._costs(list(by_id))
            except Exception as error:  # the ledger is away: later
                _log.info("expired holds cannot be looked up: %s", error)
                return
            for id, item in by_id.items():
                _, amount, expires, _, *lines = item.split("\n")
                if id in costs:
                    self._settle(id, costs[id], amount, lines)
                keep = id not in costs and int(seconds) * 1_000_000 - int(expires) < _HOPELESS_US
                await self.run("looked", item, int(keep))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
