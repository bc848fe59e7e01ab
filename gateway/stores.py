"""Where calls are written down and what may be spent: this process's own stores, or those at the house of several workers."""
from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from gateway.access.keys import KeyRing
from gateway.access.origins import Origins
from gateway.access.people import Person
from gateway.alerts.watch import AlertWatch
from gateway.budgets import Budgets
from gateway.budgets.memory import MemoryBudgets
from gateway.budgets.redis import RedisBudgets
from gateway.core import clock
from gateway.core.secret import Secret
from gateway.first_keys import first_keys, pepper_of
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
from gateway.orphans import pricing
from gateway.people_table import PeopleTable
from gateway.redis_link import Link, address
from gateway.remembered import Remembered
from gateway.settings import Settings
from gateway.spent import Spent
from gateway.status_table import StatusTable
from gateway.upkeep import Upkeep
from gateway.watched import bounds_of, channels_of, limits_of
from gateway.workers.far import FarBudgets, FarHouse, Seat, WorkerLedger
from gateway.workers.house import House
from router_policies.files import PolicyStore

_AWAY_S, _COPY_S = 2.0, 5.0
_HOUSE_ROOM = Room(segment_bytes=1 << 16, reserve_bytes=1 << 16)
"""The house settles nothing itself."""
_log = logging.getLogger("tollway")


@dataclass(slots=True, kw_only=True)
class Stores:
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
async def own_stores(
    settings: Settings, pepper: bytes, policies: PolicyStore, demo_team: str | None
) -> AsyncIterator[Stores]:
    async with _database(settings, pepper, demo_team) as (store, table, ring, upkeep):
        journal = Journal(settings.data / "journal", settings.durability, _room(settings), pricing(settings))
        ledger = SqlLedger(store, journal)
        found = journal.recover()
        await ledger.start(found)
        try:
            async with _budgets(settings, policies, ring, ledger, journal) as budgets:
                if isinstance(budgets, RedisBudgets):
                    budgets.bury(journal.dead, {entry.id: entry.cost_nanos for entry in found})
                yield Stores(
                    table=table, people=PeopleTable(store), memory=MemoryTable(store), ring=ring, journal=journal,
                    ledger=ledger, budgets=budgets, status=StatusTable(store), upkeep=upkeep,
                )  # fmt: skip
        finally:
            await ledger.close()
            journal.close()


@asynccontextmanager
async def stores_of_house(
    settings: Settings, pepper: bytes, policies: PolicyStore, seat: Seat
) -> AsyncIterator[Stores]:
    async with seat.house() as house:
        clock.SHARED.correct(await house.keys.ahead_us())
        ring = seat.worker.ring = KeyRing(pepper, await house.keys.load(), origins_of(settings))
        remembered_keys(settings).restore(ring)
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
                yield Stores(
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
    there = await schema_there(settings)
    store = Store(settings.database_url)
    table, ring = KeyTable(store), KeyRing(pepper, origins=origins_of(settings))
    coming = None
    try:
        if there:
            await _load_keys(settings, table, ring, demo_team)
        else:
            ring.stale = True
            _log.warning("the database is away: %d keys that were used lately go on", remembered_keys(settings).restore(ring))
            coming = asyncio.create_task(_come_back(settings, table, ring, demo_team), name="database-comes-back")
        upkeep = Upkeep(Roller(store, named(lambda: prices.load(settings.prices))))
        told = _alerts(settings, store)
        upkeep.add(told.check)
        upkeep.start()
        try:
            async with _copied(settings, store):
                yield store, table, ring, upkeep
        finally:
            await upkeep.close()
            told.reports.close()
    finally:
        if coming is not None:
            coming.cancel()
        await store.close()


@asynccontextmanager
async def _copied(settings: Settings, store: Store) -> AsyncIterator[None]:
    """Keeps the copy in ClickHouse, where there is to be one; in a turn of its own, for it may be slow."""
    if settings.clickhouse_url is None:
        yield
        return
    from gateway.ledger.clickhouse import ClickHouse  # only where there is one

    copy = ClickHouse(store, settings.clickhouse_url.reveal())
    shipping = Upkeep(None, [copy.step], every_s=_COPY_S)
    shipping.start()
    try:
        yield
    finally:
        await shipping.close()
        await copy.close()


async def schema_there(settings: Settings) -> bool:
    """Whether the database is there, its schema up to date; away, a gateway that remembers keys starts without it. Raises
    `SchemaError`, and SQLAlchemy's errors and `OSError` where that would be of no use."""
    try:
        await upgrade(settings.database_url, by_hand=settings.database_upgrade == "command")
    except (SQLAlchemyError, OSError) as error:
        if settings.database_url.startswith("sqlite") or not (is_away(error) and remembered_keys(settings).useful):
            raise
        return False
    return True


async def _load_keys(settings: Settings, table: KeyTable, ring: KeyRing, demo_team: str | None) -> None:
    await table.ahead_us()
    ring.put(*await table.load())
    await first_keys(settings, table, ring, demo_team)


async def _come_back(settings: Settings, table: KeyTable, ring: KeyRing, demo_team: str | None) -> None:
    """What a start does with the database, once it is there."""
    while True:
        await asyncio.sleep(_AWAY_S)
        try:
            if await schema_there(settings):
                await _load_keys(settings, table, ring, demo_team)
                ring.stale = False
                return
        except (SQLAlchemyError, OSError, SchemaError, ValueError) as error:
            _log.error("the database is not as it should be: %s", error)


def origins_of(settings: Settings) -> Origins:
    return Origins(settings.proxies, plain_http=settings.plain_http)


def remembered_keys(settings: Settings) -> Remembered:
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
    async with _database(settings, pepper_of(settings), demo_team) as (store, _, ring, _):
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


async def people_known(table: PeopleTable) -> list[Person]:
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
        budgets = RedisBudgets(
            redis_link(settings.redis_url, settings), journal.writer, org=settings.organisation, past=spent.past,
            costs=spent.costs, away=settings.redis_away,
        )  # fmt: skip
    else:
        budgets = MemoryBudgets(past=spent.past) if house is None else FarBudgets(house.link)
    await budgets.start()
    try:
        yield budgets
    finally:
        await budgets.close()
        books.close()


def redis_link(url: Secret, settings: Settings) -> Link:
    """A connection of its own to the Redis that replicas share."""
    return Link(address(url.reveal()), timeout_s=settings.redis_timeout_ms / 1e3, ca_file=settings.redis_ca)


def _room(settings: Settings) -> Room:
    return Room(most_bytes=settings.journal_max_mib * 2**20)
