"""A gateway in a simulated world: the real pipeline, admission, budgets, journal and ledger; model servers, clients, database and
clock are made up. It can be killed at any moment and begins again with what the disk has.

Not simulated: sockets (the gateway begins behind its HTTP parser), Redis (one process's budgets), several workers.
"""
from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

from gateway import app
from gateway.access.keys import KeyRecord, KeyRing, mint
from gateway.budgets import Account, Hold, Settlement
from gateway.budgets import Spent as Past
from gateway.budgets.memory import MemoryBudgets
from gateway.core.errors import GatewayError, Overloaded
from gateway.core.money import nanos
from gateway.counting import Counting
from gateway.holds import Holds
from gateway.ledger import Entry
from gateway.ledger.journal import Journal, Room
from gateway.ledger.sql import SqlLedger
from gateway.metering.price_files import PriceFiles
from gateway.metrics import Metrics
from gateway.orphans import pricing
from gateway.pipeline import Pipeline
from gateway.serve import read_settings
from gateway.stores import Stores
from gateway.web.front import Front
from gateway.web.front import Servers as Answering
from router_policies.files import PolicyStore
from tests.build import PLAIN, write_files
from tests.ledger.test_power import Disk
from tests.simulation.clock import SimulatedLoop
from tests.simulation.parts import Reader, Rows, Servers

MODEL, TEAM = "m-1", "sim"
INPUT_NANOS, OUTPUT_NANOS = 2_000, 10_000
"""Of a token, by the price file of `tests.build`."""
_SMALL = Room(segment_bytes=1 << 17, reserve_bytes=1 << 18)


class _Nothing:
    """Stands for tables that no call here needs."""

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> list[Any]:
            return []

        return nothing


class World:
    """What outlives the gateway's process: clients, servers, the database, and what the disk has."""

    def __init__(self, folder: Path, loop: SimulatedLoop, chance: random.Random) -> None:
        self.folder, self.loop, self.chance = folder, loop, chance
        self.limit_nanos = nanos(str(chance.choice((0.03, 0.3, 100))))
        self.durability = chance.choice(("process", "process", "power"))
        self.rows, self.servers = Rows(), Servers(chance, chance.choice((0.0, 0.3, 1.0)))
        self.readers: list[Reader] = []
        self.refused: Counter[str] = Counter()
        self.trace: list[str] = []
        self.lives = 0
        self.life: Life | None = None
        policy = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": self.limit_nanos / 1e9, "window": "total"}]}
        backends = {
            name: {
                "dialect": "openai", "url": f"http://{name}.test/v1", "provider": "test", "models": [MODEL],
                "first_byte_timeout_ms": 20_000, "idle_timeout_ms": 10_000,
            }
            for name in ("one", "two")
        }  # fmt: skip
        config = {"backends": backends, "durability": self.durability, "explain_mb": 0}
        self.settings = read_settings(write_files(folder, config, {TEAM: policy}), None, None)
        self.policies, self.prices = PolicyStore(self.settings.policies), PriceFiles(self.settings.prices)
        self.key_id, key = mint()
        self.key = key.reveal()
        ring = KeyRing(b"pepper")
        self.record = KeyRecord(id=self.key_id, team=TEAM, digest=ring.digest(self.key))
        self.disk = Disk(folder / "journal-1", chance)

    async def past(self, account: Account, *_: Any) -> Past:
        assert self.life is not None
        await self.life.ledger.flush(timeout_s=600)
        return Past(sum(entry.cost_nanos or 0 for entry in self.rows.table.values()))

    async def begin(self) -> None:
        """Starts the gateway on what there is."""
        self.lives += 1
        self.life = Life(self, self.folder / f"journal-{self.lives}")
        await self.life.start()

    async def kill(self) -> None:
        """At this instant: what the process had written is there for the next one, at `power` what was synced and any part of the
        rest."""
        life, fresh = self.life, self.folder / f"journal-{self.lives + 1}"
        assert life is not None
        self.loop.at_step = lambda: None
        if self.durability == "power":
            self.disk.cut(fresh)
        else:
            shutil.copytree(life.folder, fresh)
        self.trace.append(f"{self.loop.now_s:.6f} killed")
        for reader in self.readers:
            if not reader.ended:
                reader.gone = reader.ended = True
        rows, self.rows = self.rows, Rows()
        self.rows.table, self.rows.changed = dict(rows.table), rows.changed     # what the dead one still does reaches nobody
        self.servers.dead = True
        await life.die()
        self.servers.dead = False
        self.disk = Disk(fresh, self.chance)
        self.disk.has_all()
        self.servers.open = 0
        answered = {reader.call_id for reader in self.readers if reader.whole_s is not None and reader.status == 200}
        await self.begin()
        assert self.life is not None
        known = {entry.call_id for entry in self.rows.table.values()} | {entry.call_id for entry in self.life.found}
        assert answered <= known, f"lost: {sorted(answered - known)[:3]}"

    async def client(self, number: int) -> None:
        """One call, with all that clients do."""
        chance = self.chance
        reader = Reader(slow=chance.random() < 0.1)
        self.readers.append(reader)
        stream, text = chance.random() < 0.5, "the toll road " * chance.randrange(100, 300)
        body = json.dumps({
            "model": MODEL, "max_tokens": chance.randrange(1, 60), "stream": stream,
            "messages": [{"role": "user", "content": f"{number} {text}"}],
        }).encode()  # fmt: skip
        headers = [(b"authorization", f"Bearer {self.key}".encode()), (b"content-type", b"application/json")]
        if chance.random() < 0.2:
            headers.append((b"x-stainless-read-timeout", str(chance.choice((1, 5))).encode()))
        if chance.random() < 0.2:
            self.loop.call_later(chance.expovariate(2.0), reader.hang_up)
        life = self.life
        assert life is not None
        await life.answer(body, headers, reader)
        self.trace.append(f"{self.loop.now_s:.6f} {number} {reader.status} {len(reader.got)}")

    def check(self) -> None:
        """What holds at every moment."""
        life = self.life
        assert life is not None
        for book in life.budgets._books.values():
            assert book.held >= 0
            assert book.spent + book.held <= self.limit_nanos, (book.spent, book.held, self.limit_nanos)
        assert life.admission.in_flight >= 0
        assert not self.rows.changed

    async def verdict(self) -> None:
        """What holds when all calls are over and the database is back."""
        life = self.life
        assert life is not None
        self.rows.away = self.rows.forgets = False
        assert await life.ledger.flush(timeout_s=600)
        assert not any(book.held for book in life.budgets._books.values()), "reserved, with no call under way"
        table = self.rows.table
        (book,) = await life.budgets.snapshot() or [None]
        spent = sum(entry.cost_nanos or 0 for entry in table.values())
        if book is not None:
            assert (book.held_nanos, book.spent_nanos) == (0, spent + life.budgets.unknown_nanos)
        assert spent <= self.limit_nanos
        assert (life.admission.in_flight, self.servers.open) == (0, 0)
        if self.durability == "process" or self.lives == 1:     # a power cut may take what was under way
            assert len(table) >= len(self.servers.sent), "an attempt without its entry"
        assert self.lives > 1 or len(table) == len(self.servers.sent)
        self._tell_the_truth(table)
        for reader in self.readers:
            if reader.status == 200 and reader.whole_s is not None:
                self._one_answer([entry for entry in table.values() if entry.call_id == reader.call_id])

    def _tell_the_truth(self, table: dict[str, Entry]) -> None:
        """Usage that a server told is what is booked, at its price, and once."""
        told = Counter(entry.tokens.uncached for entry in table.values() if entry.tokens_from == "provider" and entry.cost_nanos)
        assert all(n == 1 for n in told.values()), told
        for entry in table.values():
            if entry.tokens_from != "provider" or not entry.cost_nanos:
                continue
            usage = self.servers.sent[(entry.tokens.uncached or 0) - 1].usage
            assert entry.tokens.output == usage["completion_tokens"]
            assert entry.cost_nanos == usage["prompt_tokens"] * INPUT_NANOS + usage["completion_tokens"] * OUTPUT_NANOS

    def _one_answer(self, attempts: list[Entry]) -> None:
        """None is tried again after its first byte: at most the last of them gave the client something."""
        attempts.sort(key=lambda entry: entry.attempt)
        assert attempts
        assert [entry.attempt for entry in attempts] == list(range(1, len(attempts) + 1))
        assert all(entry.status != "ok" for entry in attempts[:-1]), [entry.status for entry in attempts]


class Budgets(MemoryBudgets):
    """Those of one process. What a call cost that nobody can tell is booked at what was held; the ledger has no sum for it."""

    unknown_nanos = 0

    def _settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None) -> Settlement:
        done = super()._settle(hold, cost_nanos, tokens)
        if cost_nanos is None and not done.repeated:
            self.unknown_nanos += done.posted_nanos
        return done


class Life:
    """One process of the gateway."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.journal = Journal(folder, world.durability, _SMALL, pricing(world.settings))  # type: ignore[arg-type]
        self.found = self.journal.recover()
        self.ledger = SqlLedger(world.rows, self.journal)
        self.budgets = Budgets(past=world.past)
        self.tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        world, nothing = self.world, cast(Any, _Nothing())
        ring = KeyRing(b"pepper", [world.record])
        stores = Stores(
            table=nothing, people=nothing, memory=nothing, ring=ring, journal=self.journal, ledger=self.ledger,
            budgets=self.budgets, status=nothing, upkeep=nothing,
        )  # fmt: skip
        await self.ledger.start(self.found)
        via = await app._made(world.settings, world.policies, world.prices, world.servers, stores, b"pepper", None)
        self.admission, self.progress = via.admission, via.progress
        holds = Holds(via.budgets, via.prices)
        pipeline = Pipeline(via, holds)
        serving = Answering(pipeline.serve, Counting(via, pipeline).serve, nothing, via.admission, pipeline.patient)
        self.front = Front(serving, ring, Metrics(), 1 << 25)
        via.admission.start()
        via.progress.start()
        self._reports = via.reports
        world.loop.at_step = world.check

    async def answer(self, body: bytes, headers: list[tuple[bytes, bytes]], reader: Reader) -> None:
        """As `web/door.py` does it."""
        try:
            visit = self.front.enter("/v1/chat/completions", "POST", headers, "127.0.0.1")
            if not self.front.may_enter():
                place = self.world.loop.create_future()
                self.front.queue(visit, partial(_came, place))
                await place
        except GatewayError as error:
            self.world.refused[error.code] += 1
            return
        task = self.world.loop.create_task(self.front.serve(visit, body, reader))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        await asyncio.wait([task])

    async def die(self) -> None:
        """Leaves nothing running; what is still written goes to a disk that nobody looks at."""
        self.admission.stop()
        in_order = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=lambda task: (len(task.get_name()), task.get_name()))
        for task in in_order:
            if not getattr(task.get_coro(), "__qualname__", "").startswith(("World.", "life_of")):
                task.cancel()
        await asyncio.sleep(5)
        self._reports.close()
        gc.collect()

    async def close(self) -> None:
        await self.progress.close()
        self.admission.stop()
        await self.ledger.close()
        self._reports.close()
        self.journal.close()


def _came(place: asyncio.Future[None], refusal: Overloaded | None) -> None:
    if not place.done():
        place.set_result(None) if refusal is None else place.set_exception(refusal)
