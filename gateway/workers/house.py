"""What there may be only one of: the database's one writer, the table of keys, and budgets where no Redis keeps them.

It projects what the workers settle, each worker's journal keeping its entries until the house says that the database has them.
A worker that dies is buried: its journal is read, its entries are booked, and each hold it had open is settled to what the
journal says of it, by the attempt's id. So a worker's death costs no entry and leaves no money reserved.
"""
from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.access.keys import KeyRecord, KeyRing
from gateway.budgets import Account, BudgetState, Gate, Hold
from gateway.budgets.memory import MemoryBudgets
from gateway.key_table import KeyTable
from gateway.ledger import Entry
from gateway.ledger.journal import Journal
from gateway.ledger.sql import SqlLedger, Store, is_away
from gateway.memory_table import MemoryTable
from gateway.people_table import PeopleTable
from gateway.status_table import StatusTable
from gateway.workers.cohorts import HouseCohorts, RoomCohorts
from gateway.workers.errors import CODECS
from gateway.workers.link import Link, Method, connect, methods

_BURY_S = 0.1
_LOOK_AROUND_S = 5.0
_ANSWER_S = 2.0
_REMEMBERED = 100_000
MOST_SAID, _SAID_BYTES = 2_000, 16 << 20
Reserved = tuple[int, int, list[int]]
"""A hold without what whoever asked for it knows."""
_ACCOUNT = msgspec.msgpack.Decoder(Account)
_log = logging.getLogger("tollway.workers")


class House:
    """Lives in a process of its own; workers are links."""

    def __init__(self, store: Store, journal: Journal, ledger: SqlLedger, budgets: MemoryBudgets) -> None:
        self.store = store
        self.journal = journal
        self.ledger = ledger
        self.budgets = budgets
        self.ring: KeyRing | None = None
        """Whose keys are whose, for budgets of users."""
        self._rooms: dict[int, _Room] = {}
        self._shared: dict[str, Method] = {
            **methods("keys", _Keys(store, self.tell_of_key, lambda: self.ring.records() if self.ring else [])),
            **methods("people", PeopleTable(store)),
            **methods("memory", MemoryTable(store)),
            **methods("status", StatusTable(store)),
            **methods("house", _Door(self)),
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self.found: OrderedDict[str, int | None] = OrderedDict()
        """Costs of attempts that stood in journals of the dead, by id."""
        self.accounts: dict[bytes, Account] = {}
        """As workers write them."""
        self.said: deque[tuple[str, bytes]] = deque()
        """What workers have told each other of prompts, for one that comes later; bounded."""
        self._said_bytes = 0
        self.cohorts = HouseCohorts()

    async def live(self, control: socket.socket) -> None:
        """Takes workers in as the supervisor sends them, until it goes away or says so with SIGTERM."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, over.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        control.setblocking(False)

        def came() -> None:
            try:
                data, fds, _, _ = socket.recv_fds(control, 64, 8)
            except BlockingIOError:
                return
            for fd in fds:
                self._soon(self._take_in(socket.socket(fileno=fd)))
            if not data:
                loop.remove_reader(control)
                over.set()

        loop.add_reader(control, came)
        look = asyncio.create_task(self._look_around())
        await over.wait()
        look.cancel()
        for room in list(self._rooms.values()):
            room.link.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.ledger.flush(10.0)

    def keep(self, topic: str, data: bytes) -> None:
        """For workers that come later."""
        self.said.append((topic, data))
        self._said_bytes += len(data)
        while len(self.said) > MOST_SAID or self._said_bytes > _SAID_BYTES:
            self._said_bytes -= len(self.said.popleft()[1])

    @property
    def rooms(self) -> list[_Room]:
        return list(self._rooms.values())

    async def ask_all(self, name: str, *arguments: Any) -> list[Any]:
        """What all workers answer in time."""
        asked = [asyncio.wait_for(room.link.ask(name, arguments), _ANSWER_S) for room in list(self._rooms.values())]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """All that any worker has settled can be read."""
        await self.ask_all("worker.flush", timeout_s)
        return await self.ledger.flush(timeout_s)

    async def tell_of_key(self, record: KeyRecord) -> None:
        if self.ring is not None:
            self.ring.put(record)
        await self.ask_all("worker.put_key", record)

    async def _take_in(self, sock: socket.socket) -> None:
        room = _Room(self)
        room.link = await connect(sock, {**self._shared, **room.methods()}, lambda: self._soon(self._bury(room)), CODECS)
        self._rooms[id(room)] = room

    async def _bury(self, room: _Room) -> None:
        """Its last requests may still be served meanwhile; its journal's lock says when it is really dead."""
        self._rooms.pop(id(room), None)
        room.cohorts.leave()
        while room.writer and self.journal.lives(room.writer):  # noqa: ASYNC110
            await asyncio.sleep(_BURY_S)
        self._recover()
        for hold in list(room.holds.values()):
            with suppress(Exception):
                if hold.id in self.found:
                    await self.budgets.settle(hold, self.found[hold.id])
                else:
                    await self.budgets.release(hold)
        if room.writer:
            await self.ask_all("worker.bury", [room.writer], dict(self.found))

    def _recover(self) -> None:
        found = self.journal.recover()
        self.ledger.adopt(found)
        self.remember(found)
        if found:
            _log.warning("%d entries were booked from the journals of processes that had died", len(found))

    def remember(self, found: Sequence[Entry]) -> None:
        """What was found in journals of the dead."""
        for entry in found:
            self.found[entry.id] = entry.cost_nanos
        while len(self.found) > _REMEMBERED:
            self.found.popitem(last=False)

    async def _look_around(self) -> None:
        """Journals of processes that lived on for a while after their house."""
        while True:
            await asyncio.sleep(_LOOK_AROUND_S)
            self._recover()

    def _soon(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Room:
    """What one worker may ask for, and the holds it has open."""

    link: Link

    def __init__(self, house: House) -> None:
        self.house = house
        self.writer = ""
        self.holds: dict[str, Hold] = {}
        self.cohorts = RoomCohorts(house.cohorts)

    def methods(self) -> dict[str, Method]:
        return {
            **methods("budgets", _Budgets(self), at_once=("hold", "settle", "settle_own")),
            **methods("cohorts", self.cohorts, at_once=("join", "begun", "end")),
            **methods("room", self),
        }

    async def move_in(self, writer: str) -> None:
        """Names the worker's journal."""
        self.writer = writer

    async def say(self, topic: str, data: bytes) -> None:
        """Tells all other workers."""
        self.house.keep(topic, data)
        for room in self.house.rooms:
            if room is not self:
                room.link.tell("worker.hear", topic, data)

    async def said(self) -> list[tuple[str, bytes]]:
        """What was told lately."""
        return list(self.house.said)

    async def buried(self) -> tuple[list[str], dict[str, int | None]]:
        """Journals whose processes are dead, and what their attempts cost."""
        return self.house.journal.dead, dict(self.house.found)

    async def insert(self, entries: list[Entry]) -> list[str]:
        """Puts entries into the database; returns the ids that it has now."""
        return await self.house.store.insert(entries)


class _Budgets:
    """Budgets that remember who holds what; see `Budgets`. A call of a team with a budget passes here twice, so what need not
    wait is served at once, an account that came before is not read again, and a hold travels as little as it can."""

    def __init__(self, room: _Room) -> None:
        self._room, self._inner = room, room.house.budgets
        self._accounts = room.house.accounts

    def hold(
        self, accounts: list[msgspec.Raw], amount_nanos: int, attempt_id: str, ttl_us: int, gates: list[Gate]
    ) -> Reserved | Coroutine[Any, Any, Reserved]:
        """Amount, expiry and the starts of the accounts' windows."""
        known = [self._account(bytes(packed)) for packed in accounts]
        if all(self._inner.knows(account) for account in known):
            return self._reserved(self._inner.take(known, amount_nanos, attempt_id, ttl_us, gates))
        return self._hold(known, amount_nanos, attempt_id, ttl_us, gates)

    async def _hold(
        self, accounts: list[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: list[Gate]
    ) -> Reserved:
        return self._reserved(await self._inner.hold(accounts, amount_nanos, attempt_id, ttl_us, gates))

    def _reserved(self, hold: Hold) -> Reserved:
        self._room.holds[hold.id] = hold
        return hold.amount_nanos, hold.expires_us, [start for _, start in hold.slots]

    def _account(self, packed: bytes) -> Account:
        account = self._accounts.get(packed)
        if account is None:
            if len(self._accounts) >= _REMEMBERED:
                self._accounts.clear()
            account = self._accounts[packed] = _ACCOUNT.decode(packed)
        return account

    def settle_own(self, hold_id: str, cost_nanos: int | None, tokens: int | None) -> None:
        """A hold that was taken in this room; once."""
        hold = self._room.holds.pop(hold_id, None)
        if hold is not None:
            self._inner.post(hold, cost_nanos, tokens)

    async def extend(self, hold: Hold, amount_nanos: int, ttl_us: int) -> Hold:
        hold = await self._inner.extend(hold, amount_nanos, ttl_us)
        self._room.holds[hold.id] = hold
        return hold

    def settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None) -> None:
        """One that may have been taken in another room."""
        self._room.holds.pop(hold.id, None)
        self._inner.post(hold, cost_nanos, tokens)

    async def seed(self, account: Account, spent_nanos: int) -> None:
        await self._inner.seed(account, spent_nanos)

    async def correct(self, account: Account, correction_id: str, delta_nanos: int, at_us: int) -> None:
        await self._inner.correct(account, correction_id, delta_nanos, at_us)

    async def snapshot(self) -> list[BudgetState]:
        return await self._inner.snapshot()


class _Keys(KeyTable):
    """The table of keys; every worker hears of a change before the one who made it gets its answer."""

    def __init__(
        self, store: Store, tell: Callable[[KeyRecord], Awaitable[None]], known: Callable[[], list[KeyRecord]]
    ) -> None:  # fmt: skip
        super().__init__(store)
        self._known = known
        self._tell = tell

    async def load(self, newer_than_us: int | None = None) -> list[KeyRecord]:
        """A worker that starts while the database is away begins with the keys that the house knows."""
        try:
            return await super().load(newer_than_us)
        except (SQLAlchemyError, OSError) as error:
            if newer_than_us is not None or not is_away(error):
                raise
            return self._known()

    async def insert(self, record: KeyRecord, actor: str) -> KeyRecord:
        record = await super().insert(record, actor)
        await self._tell(record)
        return record

    async def change(self, key_id: str, actor: str, fields: dict[str, Any]) -> KeyRecord | None:
        record = await super().change(key_id, actor, fields)
        if record is not None:
            await self._tell(record)
        return record

    async def revoke(self, key_id: str, now_us: int, actor: str) -> KeyRecord | None:
        record = await super().revoke(key_id, now_us, actor)
        if record is not None:
            await self._tell(record)
        return record


class _Door:
    """What concerns all workers."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def flush(self, timeout_s: float) -> bool:
        return await self._house.flush(timeout_s)

    async def keys_stale(self) -> bool:
        return self._house.ring is not None and self._house.ring.stale

    async def metrics(self) -> list[bytes]:
        return await self._house.ask_all("worker.metrics")

