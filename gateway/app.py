"""Puts the program together: the only file that names every concrete class."""
from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from gateway import caching
from gateway.access.keys import KeyRecord, KeyRing, key_id, mint
from gateway.backends.fleet import Fleet
from gateway.backends.http import Transport
from gateway.backends.upstream import Upstream
from gateway.backends.wire import WireTransport
from gateway.budgets.memory import MemoryBudgets
from gateway.core.errors import GatewayError
from gateway.counting import Counting
from gateway.holds import Holds
from gateway.key_table import KeyTable
from gateway.ledger import reports
from gateway.ledger.journal import Journal, Room
from gateway.ledger.schema import upgrade
from gateway.ledger.sql import SqlLedger, Store
from gateway.metering import prices
from gateway.metrics import Metrics
from gateway.passage import Passage
from gateway.pipeline import Pipeline
from gateway.planner import Planner
from gateway.services import Services
from gateway.settings import Settings
from gateway.web import admin, books, errors, health, routes
from gateway.web.front import Front, Servers, refuse_upgrade, takes
from router_policies.files import PolicyStore
from router_policies.types import Rates

_RELOAD_S = 0.5
_log = logging.getLogger("tollway")

class Gateway:
    """The ASGI application; `front` is its door for model calls, once it has started."""

    def __init__(self, inner: Litestar, passthrough: Iterable[str]) -> None:
        self.front: Front | None = None
        self._inner = inner
        self._passthrough = passthrough

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self.front is not None and takes(scope["path"], self._passthrough):
            await self.front(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_upgrade(receive, send)
        else:
            await self._inner(scope, receive, send)


def build(settings: Settings, transport: Transport | None = None, demo_team: str | None = None) -> Gateway:
    """The program. Raises `BadFile` or `PriceFileError` for files that cannot be used.

    `demo_team`: a team that gets a first key in DATA/keys/demo, as `tollway up` promises.
    """
    policies = PolicyStore(settings.policies)
    book = prices.load(settings.prices)
    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with _services(settings, policies, book, transport, demo_team) as services:
            holds = Holds(services.budgets, services.prices, services.reports, services.ledger.flush)
            pipeline = Pipeline(services, holds)
            servers = Servers(pipeline.serve, Counting(services, pipeline).serve, Passage(services, holds).serve)
            gateway.front = Front(servers, services.keys, services.metrics, settings.max_body_bytes)
            app.state.services = services
            yield
            services.draining = True

    inner = Litestar(
        route_handlers=[*health.HANDLERS, *routes.HANDLERS, *admin.HANDLERS, *books.HANDLERS],
        lifespan=[lifespan],
        state=State({}),
        exception_handlers={
            GatewayError: errors.on_gateway_error,
            HTTPException: errors.on_http_error,
            Exception: errors.on_any_error,
        },
        openapi_config=None,
        logging_config=None,
    )

    gateway = Gateway(inner, settings.passthrough)
    return gateway


async def check(settings: Settings) -> None:
    """Tries what a start needs of the machine, so that a failure is one sentence. Raises `OSError`, `ValueError`,
    `SchemaError` or SQLAlchemy's errors."""
    settings.data.mkdir(parents=True, exist_ok=True)
    _secret_file(settings.data / "keys" / "pepper")
    await upgrade(settings.database_url, by_hand=settings.database_upgrade == "command")


@asynccontextmanager
async def _services(
    settings: Settings,
    policies: PolicyStore,
    book: prices.PriceBook,
    transport: Transport | None,
    demo_team: str | None,
) -> AsyncIterator[Services]:
    settings.data.mkdir(parents=True, exist_ok=True)
    keys_folder = settings.data / "keys"
    pepper = _secret_file(keys_folder / "pepper").encode()
    await upgrade(settings.database_url, by_hand=settings.database_upgrade == "command")
    store = Store(settings.database_url)
    table = KeyTable(store)
    ring = KeyRing(pepper, await table.load())
    await _first_keys(settings, table, ring, keys_folder, demo_team)
    journal = Journal(settings.data / "journal", settings.durability, Room(most_bytes=settings.journal_max_mib * 2**20))
    ledger = SqlLedger(store, journal)
    await ledger.start(journal.recover())
    upstream = Upstream(transport or WireTransport())
    services = Services(
        settings=settings,
        keys=ring,
        key_table=table,
        policies=policies,
        fleet=Fleet(settings, _rates_of(book)),
        upstream=upstream,
        prices=book,
        budgets=MemoryBudgets(),
        journal=journal,
        ledger=ledger,
        reports=reports.connect(settings.database_url),
        metrics=Metrics(),
        salt=pepper,
        planner=Planner(caching.rates_of(book)),
    )
    reload = asyncio.create_task(_reload_policies(policies), name="policy-reload")
    try:
        yield services
    finally:
        reload.cancel()
        await upstream.aclose()
        await ledger.close()
        journal.close()
        services.reports.close()
        await store.close()


async def _reload_policies(policies: PolicyStore) -> None:
    while True:
        await asyncio.sleep(_RELOAD_S)
        problems = await asyncio.to_thread(policies.reload_if_changed)
        if problems:
            _log.error("policy files not loaded, the last good ones stay in force:\n%s", "\n".join(map(str, problems)))
        elif problems is not None:
            _log.info("policy files loaded, version %s", policies.current.version)


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
    if any(record.id == known for record in ring.records()):
        return
    now_us = time.time_ns() // 1_000
    record = KeyRecord(id=known, team=team, digest=ring.digest(key), name=name, role=role, created_us=now_us)
    await table.insert(record, actor="start")
    ring.put(record)


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
