"""A worker's end: what its services ask of the house instead of having it themselves."""
from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import msgspec

from gateway.access.keys import KeyRecord, KeyRing
from gateway.budgets import Account, BudgetState, Gate, Hold, Settlement
from gateway.budgets.redis import RedisBudgets
from gateway.key_table import KeyTable
from gateway.ledger import Entry
from gateway.ledger.journal import Journal
from gateway.ledger.sql import SqlLedger
from gateway.memory_table import MemoryTable
from gateway.metrics import Metrics
from gateway.people_table import PeopleTable
from gateway.status_table import StatusTable
from gateway.workers.errors import CODECS
from gateway.workers.figures import merged
from gateway.workers.house import MOST_SAID, Reserved
from gateway.workers.link import Link, Stub, connect, methods

_IDS = msgspec.msgpack.Decoder(list[str])
_RESERVED = msgspec.msgpack.Decoder(Reserved)
_HOLD = msgspec.msgpack.Decoder(Hold)
_STATES = msgspec.msgpack.Decoder(list[BudgetState])
_TEXTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_FLAG = msgspec.msgpack.Decoder(bool)
_BURIED = msgspec.msgpack.Decoder(tuple[list[str], dict[str, int | None]])
_SAID = msgspec.msgpack.Decoder(list[tuple[str, bytes]])
_log = logging.getLogger("tollway.workers")


class Worker:
    """What the house asks of a worker; filled as the worker's services come to life."""

    def __init__(self) -> None:
        self.ring: KeyRing | None = None
        self.ledger: WorkerLedger | None = None
        self.numbers: Metrics | None = None
        self.shared: RedisBudgets | None = None
        self.heard: deque[tuple[str, bytes]] | None = None
        """What siblings have said of prompts, for who shares that."""

    async def hear(self, topic: str, data: bytes) -> None:
        if self.heard is not None:
            self.heard.append((topic, data))

    async def bury(self, writers: list[str], costs: dict[str, int | None]) -> None:
        """A sibling died; what its journal says of its attempts."""
        if self.shared is not None:
            self.shared.bury(writers, costs)

    async def put_key(self, record: KeyRecord) -> None:
        if self.ring is not None:
            self.ring.put(record)

    async def flush(self, timeout_s: float) -> bool:
        return self.ledger is None or await self.ledger.flush_own(timeout_s)

    async def metrics(self) -> bytes:
        if self.ledger is None or self.numbers is None:
            return b""
        self.numbers.ledger_lag.set(self.ledger.lag)
        return await asyncio.to_thread(self.numbers.render)


@dataclass(slots=True, kw_only=True)
class Seat:
    """A worker's place. `sock` leads to the house once the process has been forked."""

    workers: int
    worker: Worker
    sock: socket.socket | None = None

    @asynccontextmanager
    async def house(self) -> AsyncIterator[FarHouse]:
        """The house, for as long as this worker lives; if the house goes first, this process ends with it."""
        assert self.sock is not None
        leaving = False

        def lost() -> None:
            if not leaving:
                _log.critical("the house is gone; this worker ends")
                os.kill(os.getpid(), signal.SIGKILL)

        far = FarHouse(await connect(self.sock, methods("worker", self.worker), lost, CODECS))
        try:
            yield far
        finally:
            leaving = True
            far.link.close()


class FarHouse:
    """The house as a worker sees it."""

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def keys(self) -> KeyTable:
        return cast("KeyTable", Stub(self.link, "keys", KeyTable))

    @property
    def people(self) -> PeopleTable:
        return cast("PeopleTable", Stub(self.link, "people", PeopleTable))

    @property
    def memory(self) -> MemoryTable:
        return cast("MemoryTable", Stub(self.link, "memory", MemoryTable))

    @property
    def status(self) -> StatusTable:
        return cast("StatusTable", Stub(self.link, "status", StatusTable))

    async def move_in(self, writer: str) -> None:
        await self.link.ask("room.move_in", (writer,))

    async def keys_stale(self) -> bool:
        """Whether the house itself has had to start without the database."""
        return _FLAG.decode(await self.link.ask("house.keys_stale", ()))

    async def buried(self) -> tuple[list[str], dict[str, int | None]]:
        """Journals whose processes are dead, and what their attempts cost."""
        return _BURIED.decode(await self.link.ask("room.buried", ()))

    async def metrics(self) -> bytes:
        """All workers' figures as one."""
        packed = _TEXTS.decode(await self.link.ask("house.metrics", ()))
        return merged([msgspec.msgpack.decode(text, type=bytes) for text in packed])


class HouseExchange:
    """Between the workers of a house; see `sharing.Exchange`."""

    def __init__(self, link: Link, worker: Worker) -> None:
        self._link, self._worker = link, worker

    @property
    def up(self) -> bool:
        return not self._link.lost

    async def start(self) -> None:
        self._worker.heard = deque(maxlen=MOST_SAID)
        self._worker.heard.extendleft(reversed(_SAID.decode(await self._link.ask("room.said", ()))))

    async def close(self) -> None:
        self._worker.heard = None

    async def post(self, topic: str, data: bytes) -> None:
        self._link.tell("room.say", topic, data)

    async def take(self) -> tuple[list[tuple[str, bytes]], bool]:
        heard = self._worker.heard
        if heard is None:
            return [], False
        posts = list(heard)
        heard.clear()
        return posts, False


class FarBudgets:
    """Budgets kept by the house; see `Budgets`. Settling does not wait: the house hears of it in order."""

    mode, problem, pending = "normal", None, 0

    def __init__(self, link: Link) -> None:
        self._link = link
        self._own = set[str]()
        """Holds that were taken here and are not settled."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def hold(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate] = (),
    ) -> Hold:  # fmt: skip
        asked = self._link.ask("budgets.hold", (accounts, amount_nanos, attempt_id, ttl_us, gates))
        amount_nanos, expires_us, starts = _RESERVED.decode(await asked)
        self._own.add(attempt_id)
        return Hold(attempt_id, amount_nanos, expires_us, tuple(zip(accounts, starts, strict=True)), tuple(gates))

    async def extend(self, hold: Hold, amount_nanos: int, ttl_us: int) -> Hold:
        return _HOLD.decode(await self._link.ask("budgets.extend", (hold, amount_nanos, ttl_us)))

    def post(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> bool:
        if hold.id in self._own:
            self._own.discard(hold.id)
            self._link.tell("budgets.settle_own", hold.id, cost_nanos, tokens)
        else:       # of an answer that was made in the background, by way of the database
            self._link.tell("budgets.settle", hold, cost_nanos, tokens)
        return cost_nanos is not None and cost_nanos > hold.amount_nanos

    async def settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> Settlement:
        over = self.post(hold, cost_nanos, tokens)
        return Settlement(hold.amount_nanos if cost_nanos is None else cost_nanos, over_hold=over)

    async def release(self, hold: Hold) -> Settlement:
        return await self.settle(hold, 0)

    async def seed(self, account: Account, spent_nanos: int) -> None:
        await self._link.ask("budgets.seed", (account, spent_nanos))

    async def correct(self, account: Account, correction_id: str, delta_nanos: int, at_us: int) -> None:
        await self._link.ask("budgets.correct", (account, correction_id, delta_nanos, at_us))

    async def snapshot(self) -> list[BudgetState]:
        return _STATES.decode(await self._link.ask("budgets.snapshot", ()))


class FarRows:
    """The database's rows, written by the house."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def insert(self, entries: Sequence[Entry]) -> list[str]:
        return _IDS.decode(await self._link.ask("room.insert", (entries,)))


class WorkerLedger(SqlLedger):
    """A worker's entries go to the house; `flush` waits for those of all workers, since a report reads all."""

    def __init__(self, link: Link, journal: Journal) -> None:
        super().__init__(FarRows(link), journal)
        self._link = link

    async def flush_own(self, timeout_s: float) -> bool:
        return await super().flush(timeout_s)

    async def flush(self, timeout_s: float = 5.0) -> bool:
        return _FLAG.decode(await self._link.ask("house.flush", (timeout_s,)))
