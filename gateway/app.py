"""Puts the program together: the only file that names every concrete class."""
from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from gateway import caching
from gateway.access.keys import KeyRecord, KeyRing, key_id, mint
from gateway.access.people import People, Person
from gateway.admission import Admission, memory_limit
from gateway.alerts.watch import AlertWatch
from gateway.backends.engines.live import Live
from gateway.backends.fleet import Fleet
from gateway.backends.http import Transport
from gateway.backends.stored import Stored
from gateway.backends.upstream import Upstream
from gateway.backends.wire import WireTransport
from gateway.budgets import Budgets
from gateway.budgets.memory import MemoryBudgets
from gateway.budgets.redis import RedisBudgets
from gateway.counting import Counting
from gateway.dialects.blocks import KNOWN
from gateway.holds import Holds
from gateway.idempotency import Idempotency
from gateway.key_table import KeyTable
from gateway.ledger import reports
from gateway.ledger.budget_use import Limit
from gateway.ledger.journal import Journal, Room
from gateway.ledger.rollups import Roller
from gateway.ledger.schema import SchemaError, upgrade
from gateway.ledger.sql import SqlLedger, Store, is_away
from gateway.memory_table import MemoryTable
from gateway.metering import prices
from gateway.metering.named import named
from gateway.metrics import Metrics
from gateway.missed import Misses
from gateway.orphans import pricing
from gateway.passage import Passage
from gateway.people_table import PeopleTable
from gateway.pipeline import Pipeline
from gateway.planner import Planner
from gateway.prefix.history import History
from gateway.prefix.index import PrefixIndex
from gateway.prefix.kv_events import KvWatch
from gateway.prefix.shared import SharedIndex
from gateway.progress import ProgressNotes
from gateway.redis_link import Link, address
from gateway.remembered import Remembered
from gateway.services import Services
from gateway.settings import Settings
from gateway.spent import Spent
from gateway.status_table import StatusTable
from gateway.upkeep import Upkeep
from gateway.watch import Watch
from gateway.watched import StatusJob, bounds_of, channels_of, limits_of
from gateway.web.front import Front, Servers, refuse_upgrade, takes
from gateway.web.guard import Limits
from gateway.workers.far import FarBudgets, FarHouse, Seat, WorkerLedger
from gateway.workers.house import House
from router_policies import waiting
from router_policies.files import PolicyStore
from router_policies.sensitivity import Learnt
from router_policies.types import Rates

if TYPE_CHECKING:
    from gateway.batches import Queue

_RELOAD_S = 0.5
_AWAY_S = 2.0
_SWITCH_S = 0.0005
"""As long as a thread beside the loop may keep a call waiting for the interpreter."""
_HOUSE_ROOM = Room(segment_bytes=1 << 16, reserve_bytes=1 << 16)
"""The house settles nothing itself."""
_log = logging.getLogger("tollway")

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class Gateway:
    """The ASGI application; `front` is its door for model calls, once it has started, and the site has all other paths."""

    def __init__(self, services: Callable[[], AbstractAsyncContextManager[Services]], settings: Settings) -> None:
        self.front: Front | None = None
        self.services: Services | None = None
        self.limits = Limits(settings.max_connections, settings.max_connections_per_address)
        self._services, self._settings = services, settings
        self._site: asyncio.Future[Asgi] | None = None
        self.queue: Queue | None = None

    def drain(self) -> None:
        """From now on `/readyz` says no and every answer ends its connection; calls are still taken."""
        if self.services is not None and self.front is not None:
            self.services.draining = self.front.draining = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self.front is not None and takes(scope["path"], self._settings.passthrough):
            await self.front(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_upgrade(receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._site is not None, "the server begins with a lifespan"
            site = await asyncio.shield(self._site)
            await site(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        """From the server's start to its end."""
        await receive()
        try:
            async with self._services() as services:
                self._open(services)
                await send({"type": "lifespan.startup.complete"})
                await receive()
                services.draining = True
                if self.queue is not None:
                    await self.queue.close()
                services.admission.stop()
        except BaseException:
            await send({"type": f"lifespan.{'startup' if self.front is None else 'shutdown'}.failed", "message": format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    def _open(self, services: Services) -> None:
        holds = Holds(services.budgets, services.prices)
        pipeline = Pipeline(services, holds)
        passage = Passage(services, holds).serve
        if self._settings.queue is not None:
            from gateway.batches import Queue  # only where there is one

            self.queue = Queue(services, pipeline, holds, self._settings.queue, passage)
        pass_on = passage if self.queue is None else self.queue.serve
        servers = Servers(pipeline.serve, Counting(services, pipeline).serve, pass_on, pipeline.look)
        services.admission.start()
        self.services = services
        self.front = Front(servers, services.keys, services.metrics, self._settings.max_body_bytes)
        self._site = asyncio.ensure_future(asyncio.to_thread(_load_site, services))


def _load_site(services: Services) -> Asgi:
    from gateway.web import site

    built = site.build(services)
    gc.freeze()  # as `serve` does with what is there before
    return built


def build(
    settings: Settings, transport: Transport | None = None, demo_team: str | None = None, seat: Seat | None = None
) -> Gateway:
    """The program. Raises `BadFile` or `PriceFileError` for files that cannot be used.

    `demo_team`: a team that gets a first key in DATA/keys/demo, as `tollway up` promises. `seat`: this process is one of
    several workers, and what there may be only one of is at the house.
    """
    policies, book = PolicyStore(settings.policies), prices.load(settings.prices)
    if seat is not None:
        import gateway.web.site  # noqa: F401 - before the workers are forked, so that they share it
    return Gateway(lambda: _services(settings, policies, book, transport, demo_team, seat), settings)


async def check(settings: Settings) -> None:
    """Tries what a start needs of the machine, so that a failure is one sentence. Raises `OSError`, `ValueError`,
    `SchemaError` or SQLAlchemy's errors."""
    _pepper(settings)
    await _schema(settings)


@dataclass(slots=True, kw_only=True)
class _Stores:
    """What is this process's own, or asked of the house."""

    table: KeyTable
    people: PeopleTable
    memory: MemoryTable
    ring: KeyRing
    journal: Journal
    ledger: SqlLedger
    budgets: Budgets
    status: StatusTable
    upkeep: Upkeep
    house: FarHouse | None = None


@asynccontextmanager
async def _own_stores(
    settings: Settings, pepper: bytes, policies: PolicyStore, demo_team: str | None
) -> AsyncIterator[_Stores]:
    async with _database(settings, pepper, demo_team) as (store, table, ring, upkeep):
        journal = Journal(settings.data / "journal", settings.durability, _room(settings), pricing(settings))
        ledger = SqlLedger(store, journal)
        found = journal.recover()
        await ledger.start(found)
        try:
            async with _budgets(settings, policies, ring, ledger, journal) as budgets:
                if isinstance(budgets, RedisBudgets):
                    budgets.bury(journal.dead, {entry.id: entry.cost_nanos for entry in found})
                yield _Stores(
                    table=table, people=PeopleTable(store), memory=MemoryTable(store), ring=ring, journal=journal,
                    ledger=ledger, budgets=budgets, status=StatusTable(store), upkeep=upkeep,
                )  # fmt: skip
        finally:
            await ledger.close()
            journal.close()


@asynccontextmanager
async def _stores_of_house(
    settings: Settings, pepper: bytes, policies: PolicyStore, seat: Seat
) -> AsyncIterator[_Stores]:
    async with seat.house() as house:
        ring = seat.worker.ring = KeyRing(pepper, await house.keys.load())
        _remembered(settings).restore(ring)
        ring.stale = await house.keys_stale()
        journal = Journal(settings.data / "journal", settings.durability, _room(settings))
        await house.move_in(journal.writer)
        ledger = seat.worker.ledger = WorkerLedger(house.link, journal)
        await ledger.start()
        upkeep = Upkeep(None)
        upkeep.start()
        try:
            async with _budgets(settings, policies, ring, ledger, journal, house) as budgets:
                if isinstance(budgets, RedisBudgets):
                    seat.worker.shared = budgets
                    budgets.bury(*await house.buried())
                yield _Stores(
                    table=house.keys, people=house.people, memory=house.memory, ring=ring, journal=journal, ledger=ledger,
                    budgets=budgets, house=house, status=house.status, upkeep=upkeep,
                )  # fmt: skip
        finally:
            await upkeep.close()
            await ledger.close()
            journal.close()


@asynccontextmanager
async def _database(
    settings: Settings, pepper: bytes, demo_team: str | None
) -> AsyncIterator[tuple[Store, KeyTable, KeyRing, Upkeep]]:
    """The one writing connection, its schema brought up to date, first keys made, and who looks after it."""
    there = await _schema(settings)
    store = Store(settings.database_url)
    table, ring = KeyTable(store), KeyRing(pepper)
    coming = None
    try:
        if there:
            await _load_keys(settings, table, ring, demo_team)
        else:
            ring.stale = True
            _log.warning("the database is away: %d keys that were used lately go on", _remembered(settings).restore(ring))
            coming = asyncio.create_task(_come_back(settings, table, ring, demo_team), name="database-comes-back")
        upkeep = Upkeep(Roller(store, named(lambda: prices.load(settings.prices))))
        told = _alerts(settings, store)
        upkeep.add(told.check)
        upkeep.start()
        try:
            yield store, table, ring, upkeep
        finally:
            await upkeep.close()
            told.reports.close()
    finally:
        if coming is not None:
            coming.cancel()
        await store.close()


async def _schema(settings: Settings) -> bool:
    """Whether the database is there, its schema up to date; away, a gateway that remembers keys starts without it. Raises
    `SchemaError`, and SQLAlchemy's errors and `OSError` where that would be of no use."""
    try:
        await upgrade(settings.database_url, by_hand=settings.database_upgrade == "command")
    except (SQLAlchemyError, OSError) as error:
        if settings.database_url.startswith("sqlite") or not (is_away(error) and _remembered(settings).useful):
            raise
        return False
    return True


async def _load_keys(settings: Settings, table: KeyTable, ring: KeyRing, demo_team: str | None) -> None:
    ring.put(*await table.load())
    await _first_keys(settings, table, ring, settings.data / "keys", demo_team)


async def _come_back(settings: Settings, table: KeyTable, ring: KeyRing, demo_team: str | None) -> None:
    """What a start does with the database, once it is there."""
    while True:
        await asyncio.sleep(_AWAY_S)
        try:
            if await _schema(settings):
                await _load_keys(settings, table, ring, demo_team)
                ring.stale = False
                return
        except (SQLAlchemyError, OSError, SchemaError, ValueError) as error:
            _log.error("the database is not as it should be: %s", error)


def _remembered(settings: Settings) -> Remembered:
    return Remembered(settings.data / "keys" / "known.json")


def _alerts(settings: Settings, store: Store) -> AlertWatch:
    policies, found = PolicyStore(settings.policies), reports.connect(settings.database_url)

    def limits() -> list[Limit]:
        policies.reload_if_changed()
        return limits_of(policies, found)

    return AlertWatch(
        reports=found, store=store, channels=channels_of(settings), bounds=bounds_of(settings), limits=limits
    )


async def keep_house(settings: Settings, demo_team: str | None, control: socket.socket) -> None:
    """The process that keeps the database and the budgets for several workers; returns when it is told to stop."""
    async with _database(settings, _pepper(settings), demo_team) as (store, _, ring, _):
        journal = Journal(settings.data / "journal", settings.durability, _HOUSE_ROOM, pricing(settings))
        ledger = SqlLedger(store, journal)
        found = journal.recover()
        await ledger.start(found)
        books = reports.connect(settings.database_url)
        try:
            budgets = MemoryBudgets()
            house = House(store, journal, ledger, budgets)
            house.remember(found)
            budgets.past = Spent(books, house.flush, partial(_aliases, PolicyStore(settings.policies)), ring.of_user).past
            house.ring = ring
            await house.live(control)
        finally:
            books.close()
            await ledger.close()
            journal.close()


@asynccontextmanager
async def _services(
    settings: Settings,
    policies: PolicyStore,
    book: prices.PriceBook,
    transport: Transport | None,
    demo_team: str | None,
    seat: Seat | None,
) -> AsyncIterator[Services]:
    pepper = _pepper(settings)
    of_house = None if seat is None else _stores_of_house(settings, pepper, policies, seat)
    async with of_house or _own_stores(settings, pepper, policies, demo_team) as stores:
        known = People(await _people(stores.people))
        stored = Stored(stores.memory)
        remembered = None if settings.database_url.startswith("sqlite") else _remembered(settings)
        watch = Watch(stores.ring, stores.table, known, stores.people, remembered)
        wire = transport or WireTransport()
        upstream = Upstream(wire)
        fleet, index = Fleet(settings, _rates_of(book)), PrefixIndex(settings.prefix_index_mb << 20)
        kv = KvWatch(index)
        live = Live(settings, fleet, wire, kv.told)
        services = Services(
            settings=settings,
            keys=stores.ring,
            key_table=stores.table,
            people=known,
            people_table=stores.people,
            watch=watch,
            stored=stored,
            memory=stores.memory,
            idempotency=Idempotency(stores.memory),
            progress=ProgressNotes(stores.journal),
            policies=policies,
            fleet=fleet,
            live=live,
            upstream=upstream,
            prices=book,
            budgets=stores.budgets,
            journal=stores.journal,
            ledger=stores.ledger,
            reports=reports.connect(settings.database_url),
            metrics=Metrics(),
            salt=pepper,
            planner=Planner(caching.rates_of(book)),
            index=index,
            kv=kv,
            misses=Misses(History(settings.explain_mb << 20)),
            learnt=_learnt(settings.data),
            house=stores.house,
            admission=Admission(memory_limit(settings, 1 if seat is None else seat.workers)),
        )
        sys.setswitchinterval(_SWITCH_S)
        stores.ledger.explained = services.misses.fill
        services.metrics.unexplained = services.misses.dropped_so_far
        KNOWN.resize(settings.known_parts_mb << 20)
        if seat is not None:
            seat.worker.numbers = services.metrics
        watch.start()
        live.start()
        sharing = None
        if settings.redis_url is not None:
            link = Link(address(settings.redis_url.reveal()), ca_file=settings.redis_ca)
            sharing = SharedIndex(services.index, link, settings.organisation)
            await sharing.start()
        status = StatusJob(services, stores.status)
        stores.upkeep.add(status)
        stored.start()
        services.progress.start()
        reload = asyncio.create_task(_reload_policies(policies), name="policy-reload")
        try:
            yield services
        finally:
            reload.cancel()
            if sharing is not None:
                await sharing.close()
            stores.upkeep.drop(status)
            await live.close()
            await watch.close()
            await services.progress.close()
            await stored.close()
            await upstream.aclose()
            await asyncio.to_thread(services.misses.close)
            services.reports.close()


async def _people(table: PeopleTable) -> list[Person]:
    """Nobody, while the database is away; `Watch` brings them when it is back."""
    try:
        return await table.load()
    except (SQLAlchemyError, OSError) as error:
        if not is_away(error):
            raise
        return []


def _aliases(policies: PolicyStore, team: str, model: str) -> list[str]:
    """Names that the team's clients may write for the model."""
    return [name for name, meant in policies.current.for_team(team).models.aliases.items() if meant == model]


@asynccontextmanager
async def _budgets(
    settings: Settings, policies: PolicyStore, ring: KeyRing, ledger: SqlLedger, journal: Journal,
    house: FarHouse | None = None,
) -> AsyncIterator[Budgets]:  # fmt: skip
    """In the store that replicas share, at the house of this process's siblings, or here."""
    books = reports.connect(settings.database_url)
    spent = Spent(books, ledger.flush, partial(_aliases, policies), ring.of_user)
    budgets: Budgets
    if settings.redis_url is not None:
        link = Link(address(settings.redis_url.reveal()), ca_file=settings.redis_ca)
        budgets = RedisBudgets(
            link, journal.writer, org=settings.organisation, past=spent.past, costs=spent.costs,
            away=settings.redis_away,
        )  # fmt: skip
    else:
        budgets = MemoryBudgets(past=spent.past) if house is None else FarBudgets(house.link)
    await budgets.start()
    try:
        yield budgets
    finally:
        await budgets.close()
        books.close()


async def _reload_policies(policies: PolicyStore) -> None:
    while True:
        await asyncio.sleep(_RELOAD_S)
        problems = await asyncio.to_thread(policies.reload_if_changed)
        if problems:
            _log.error("policy files not loaded, the last good ones stay in force:\n%s", "\n".join(map(str, problems)))
        elif problems is not None:
            _log.info("policy files loaded, version %s", policies.current.version)


def _learnt(data: Path) -> Learnt | None:
    """The model of `tollway sensitivity train`, if there is one and it is better than guessing."""
    path = data / "sensitivity.json"
    if not path.exists():
        return None
    try:
        model = waiting.load(path)
    except waiting.BadModel as error:
        _log.warning("sensitivity model not used: %s", error)
        return None
    return model.learnt() if model.measured is not None and model.measured.useful else None


def _rates_of(book: prices.PriceBook) -> Callable[[str, str, str | None], Rates]:
    def rates_of(provider: str, model: str, tier: str | None) -> Rates:
        found = book.rates(provider, model, tier, time.time_ns() // 1_000)
        return Rates() if found is None else Rates(found.uncached, found.cached, found.cache_write, found.output)

    return rates_of


async def _first_keys(
    settings: Settings, table: KeyTable, ring: KeyRing, folder: Path, demo_team: str | None
) -> None:
    """The admin key and, if asked for, a demo key: made at the first start, kept in files that only the owner reads."""
    if settings.admin_key is not None:
        await _ensure(table, ring, settings.admin_key.reveal(), team="operator", role="admin", name="from settings")
    else:
        await _ensure(table, ring, _key_file(folder / "admin"), team="operator", role="admin", name="first admin key")
    if demo_team is not None:
        await _ensure(table, ring, _key_file(folder / "demo"), team=demo_team, role="member", name="demo key")


async def _ensure(table: KeyTable, ring: KeyRing, key: str, *, team: str, role: str, name: str) -> None:
    known = key_id(key)
    if known is None:
        raise ValueError(f"the {name} does not look like a Tollway key (tw_...); remove its file to have a new one made")
    if (there := ring.record(known)) is not None:
        if there.digest != ring.digest(key):
            raise ValueError(f"the {name} is not the one in the database: replicas that share it need one `key_pepper`")
        return
    now_us = time.time_ns() // 1_000
    record = KeyRecord(id=known, team=team, digest=ring.digest(key), name=name, role=role, created_us=now_us)
    try:
        ring.put(await table.insert(record, actor="start"))
    except IntegrityError:                      # another replica was first
        ring.put(*await table.load())


def _room(settings: Settings) -> Room:
    return Room(most_bytes=settings.journal_max_mib * 2**20)


def _pepper(settings: Settings) -> bytes:
    settings.data.mkdir(parents=True, exist_ok=True)
    own = _secret_file(settings.data / "keys" / "pepper") if settings.key_pepper is None else settings.key_pepper.reveal()
    return own.encode()


def _key_file(path: Path) -> str:
    if not path.exists():
        _write_secret(path, mint()[1].reveal())
    return path.read_text(encoding="ascii").strip()


def _secret_file(path: Path) -> str:
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(48))
    return path.read_text(encoding="ascii").strip()


def _write_secret(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text + "\n")
