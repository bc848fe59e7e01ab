"""Puts the program together: the only file that names every concrete class."""
from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from gateway import caching
from gateway.access.people import People
from gateway.admission import Admission, memory_limit
from gateway.backends.engines.live import Live
from gateway.backends.fleet import Fleet
from gateway.backends.http import Transport
from gateway.backends.news import LaneNews, News
from gateway.backends.stored import Stored
from gateway.backends.upstream import Upstream
from gateway.backends.wire import WireTransport
from gateway.counting import Counting
from gateway.dialects import beginnings
from gateway.dialects.blocks import KNOWN
from gateway.first_keys import pepper_of
from gateway.holds import Holds
from gateway.idempotency import Idempotency
from gateway.lanes.trial import Trials
from gateway.ledger import reports
from gateway.metering.price_files import PriceFiles
from gateway.metering.prices import Offer, PriceBook
from gateway.metering.rows import PriceFileError
from gateway.metrics import Metrics
from gateway.missed import Misses
from gateway.passage import Passage
from gateway.pipeline import Pipeline
from gateway.planner import Planner
from gateway.planner.cohorts import Others
from gateway.prefix.history import History
from gateway.prefix.index import PrefixIndex
from gateway.prefix.kv_events import KvWatch
from gateway.prewarming import PreWarmer
from gateway.progress import ProgressNotes
from gateway.redis_cohorts import RedisCohorts
from gateway.services import Services
from gateway.settings import SHIPPED_POLICIES, Settings, served
from gateway.settings_source import SettingsSource
from gateway.sharing import RedisExchange, Sharing, Topic, topics
from gateway.stores import Stores, own_stores, people_known, redis_link, remembered_keys, schema_there, stores_of_house
from gateway.storing import Storing
from gateway.warming import Warmer
from gateway.watch import Watch
from gateway.watched import StatusJob
from gateway.web.front import Front, Servers, refuse_upgrade, takes
from gateway.web.guard import Limits
from gateway.workers.cohorts import FarCohorts
from gateway.workers.far import HouseExchange, Seat, Worker
from router_policies import waiting
from router_policies.files import PolicyStore
from router_policies.rules import Policy
from router_policies.sensitivity import Learnt
from router_policies.types import Rates
from router_policies.unserved import unserved

if TYPE_CHECKING:
    from gateway.batches import Queue

_RELOAD_S = 0.5
_SWITCH_S = 0.0005
"""As long as a thread beside the loop may keep a call waiting for the interpreter."""
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
            self.services.warmer.serve = self.services.pre_warmer.serve = None

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
        services.warmer.serve = services.pre_warmer.serve = pipeline.serve
        services.warmer.ended = services.keys.ended
        passage = Passage(services, holds).serve
        if self._settings.queue is not None:
            from gateway.batches import Queue  # only where there is one

            self.queue = Queue(services, pipeline, holds, self._settings.queue, passage)
        pass_on = passage if self.queue is None else self.queue.serve
        counting = Counting(services, pipeline.planning)
        servers = Servers(pipeline.serve, counting.serve, pass_on, services.admission, pipeline.patient)
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
    policies, prices = PolicyStore(settings.policies), PriceFiles(settings.prices)
    if seat is not None:
        import gateway.web.site  # noqa: F401 - before the workers are forked, so that they share it
    return Gateway(lambda: _services(settings, policies, prices, transport, demo_team, seat), settings)


async def check(settings: Settings) -> None:
    """Tries what a start needs of the machine, so that a failure is one sentence. Raises `OSError`, `ValueError`,
    `SchemaError` or SQLAlchemy's errors."""
    pepper_of(settings)
    await schema_there(settings)


@asynccontextmanager
async def _services(
    settings: Settings,
    policies: PolicyStore,
    prices: PriceFiles,
    transport: Transport | None,
    demo_team: str | None,
    seat: Seat | None,
) -> AsyncIterator[Services]:
    """All that serves a call, running; what was started is stopped in the opposite order, however far the start came."""
    pepper = pepper_of(settings)
    of_house = None if seat is None else stores_of_house(settings, pepper, policies, seat)
    async with AsyncExitStack() as running:
        stores = await running.enter_async_context(of_house or own_stores(settings, pepper, policies, demo_team))
        services = await _made(settings, policies, prices, transport or WireTransport(), stores, pepper, seat)
        sys.setswitchinterval(_SWITCH_S)
        KNOWN.resize(settings.known_parts_mb << 20)
        beginnings.KNOWN.resize(settings.known_turns_mb << 20)
        stores.ledger.explained = services.misses.fill
        services.metrics.unexplained = services.misses.dropped_so_far
        services.metrics.in_flight = lambda: services.admission.in_flight
        if seat is not None:
            seat.worker.numbers = services.metrics
        await _start(services, stores, running, seat)
        yield services


async def _made(
    settings: Settings, policies: PolicyStore, prices: PriceFiles, wire: Transport, stores: Stores, pepper: bytes,
    seat: Seat | None,
) -> Services:  # fmt: skip
    known = People(await people_known(stores.people))
    remembered = None if settings.database_url.startswith("sqlite") else remembered_keys(settings)
    book = prices.book
    fleet, index = Fleet(settings, _rates_of(book)), PrefixIndex(settings.prefix_index_mb << 20)
    kv, planner = KvWatch(index), Planner(caching.rates_of(book))

    def policy_of(team: str) -> Policy:
        return policies.current.for_team(team)

    return Services(
        settings=settings,
        settings_source=SettingsSource(settings.file, settings.file_digest),
        keys=stores.ring,
        key_table=stores.table,
        people=known,
        people_table=stores.people,
        watch=Watch(stores.ring, stores.table, known, stores.people, remembered),
        stored=Stored(stores.memory),
        memory=stores.memory,
        idempotency=Idempotency(stores.memory),
        progress=ProgressNotes(stores.journal),
        policies=policies,
        fleet=fleet,
        live=Live(settings, fleet, wire, kv.told),
        upstream=Upstream(wire),
        prices=book,
        price_files=prices,
        budgets=stores.budgets,
        journal=stores.journal,
        ledger=stores.ledger,
        reports=reports.connect(settings.database_url),
        metrics=Metrics(),
        salt=pepper,
        planner=planner,
        index=index,
        kv=kv,
        warmer=Warmer(policy_of),
        pre_warmer=PreWarmer(planner, policy_of),
        misses=Misses(History(settings.explain_mb << 20)),
        learnt=_learnt(settings.data),
        trials=Trials(settings.data / "rolled_back.json"),
        house=stores.house,
        admission=Admission(memory_limit(settings, 1 if seat is None else seat.workers)),
    )


async def _start(services: Services, stores: Stores, running: AsyncExitStack, seat: Seat | None) -> None:
    """Starts what works beside the calls; `running` stops it."""
    running.callback(services.reports.close)
    running.push_async_callback(asyncio.to_thread, services.misses.close)
    running.push_async_callback(services.upstream.aclose)
    warming = services.warmer, services.pre_warmer, Storing(services)
    for job in (services.stored, services.progress, services.watch, services.live, *warming):
        job.start()
        running.push_async_callback(job.close)
    status = StatusJob(services, stores.status)
    stores.upkeep.add(status)
    running.callback(stores.upkeep.drop, status)
    services.planner.others = await _cohorts(services, running)
    for sharing in _sharing(services, None if seat is None else seat.worker):
        await sharing.start()
        running.push_async_callback(sharing.close)
    reload = asyncio.create_task(_reload(services), name="reload")
    running.callback(reload.cancel)


async def _cohorts(services: Services, running: AsyncExitStack) -> Others | None:
    """Who says which process writes a cold prefix: Redis for all replicas, else the house of the workers; None: there is but
    this process."""
    settings = services.settings
    if settings.redis_url is None:
        return None if services.house is None else FarCohorts(services.house.link)
    cohorts = RedisCohorts(redis_link(settings.redis_url, settings), settings.organisation)
    await cohorts.start()
    running.push_async_callback(cohorts.close)
    return cohorts


def _sharing(services: Services, worker: Worker | None) -> Iterator[Sharing]:
    """Through Redis with all replicas, and through the house with the other workers what is not to travel so far."""
    settings, shared = services.settings, topics(services.index, services.planner, services.forms)
    shared.append(Topic("lanes", LaneNews(services.fleet), tuple[str, News]))
    shared.append(Topic("roll-backs", services.trials, tuple[str, str]))
    far = [one for one in shared if settings.share_text or not one.text] if settings.redis_url is not None else []
    if settings.redis_url is not None:
        yield Sharing(far, RedisExchange(redis_link(settings.redis_url, settings), settings.organisation))
    near = [one for one in shared if one not in far]
    if worker is not None and services.house is not None and near:
        yield Sharing(near, HouseExchange(services.house.link, worker))


async def _reload(services: Services) -> None:
    await _look_at_names(services.settings)
    while True:
        await asyncio.sleep(_RELOAD_S)
        await _reload_policies(services)
        await _reload_prices(services)
        await _look_at_settings(services)


async def _reload_policies(services: Services) -> None:
    policies = services.policies
    problems = await asyncio.to_thread(policies.reload_if_changed)
    if problems:
        _log.error("policy files not loaded, the last good ones stay in force:\n%s", "\n".join(map(str, problems)))
    elif problems is not None:
        _log.info("policy files loaded, version %s", policies.current.version)
        await _look_at_names(services.settings)


async def _look_at_names(config: Settings) -> None:
    """Names in policies that no backend has may be slips. The shipped examples are for nobody's backends in particular."""
    if config.policies == SHIPPED_POLICIES:
        return
    for problem in await asyncio.to_thread(unserved, config.policies, served(config)):
        _log.warning("%s", problem)


async def _look_at_settings(services: Services) -> None:
    source = services.settings_source
    if await asyncio.to_thread(source.look):
        _log.warning("settings: %s", source.warning or "the file is again as it was at the start")


async def _reload_prices(services: Services) -> None:
    try:
        fresh = await asyncio.to_thread(services.price_files.changed)
    except PriceFileError as error:
        _log.error("price files not loaded, the last good ones stay in force: %s", error)
        return
    if fresh is not None:
        services.prices.renew(fresh.files)
        services.fleet.stale()
        _log.info("price files loaded")


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


def _rates_of(book: PriceBook) -> Callable[[str, str, str | None], Rates]:
    def rates_of(provider: str, model: str, tier: str | None) -> Rates:
        found = book.rates(Offer(provider, model, tier), time.time_ns() // 1_000)
        return Rates() if found is None else Rates(found.uncached, found.cached, found.cache_write, found.output)

    return rates_of
