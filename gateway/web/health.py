"""Liveness, readiness and metrics: never shed, never slow."""
from __future__ import annotations

import asyncio

from litestar import Response, get, head
from litestar.datastructures import State

from gateway.budgets import BudgetState, StoreAway
from gateway.services import Services

_WITHOUT = {
    "lease": "budgets: Redis is away ({}); calls are paid from what was drawn ahead, rate limits are this replica's share",
    "closed": "budgets: Redis is away ({}); calls that have a budget are refused with 503",
}


@get("/healthz", sync_to_thread=False)
def healthz() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@head("/healthz", sync_to_thread=False)
def lives() -> None:
    """The same, for balancers that want no body."""


@get("/readyz", sync_to_thread=False)
def readyz(state: State) -> Response[dict[str, object]]:
    """Whether calls can be served, and everything that is not as it should be, in words."""
    body = _standing(state.services)
    return Response(body, status_code=_status(body))


@head("/readyz", sync_to_thread=False)
def is_ready(state: State) -> Response[None]:
    """The same, by its status alone."""
    return Response(None, status_code=_status(_standing(state.services)))


def _status(standing: dict[str, object]) -> int:
    return 200 if standing["status"] == "ready" else 503


def _standing(services: Services) -> dict[str, object]:
    problems = [str(problem) for problem in services.policies.problems]
    notes = [f"policy files: {p}; the last good ones stay in force" for p in problems]
    if services.price_files.problem:
        notes.append(f"price files: {services.price_files.problem}; the last good ones stay in force")
    if services.settings_source.warning:
        notes.append(f"settings: {services.settings_source.warning}")
    if services.ledger.failing:
        notes.append(f"database: {services.ledger.failing}; {services.ledger.lag} entries wait in the journal")
    budgets = services.budgets
    if budgets.mode != "normal":
        notes.append(_WITHOUT[budgets.mode].format(budgets.problem))
    if services.keys.stale:
        notes.append("keys: the database is away; keys used in the last 15 minutes go on, others get 503")
    if services.watch.warning:
        notes.append(f"database: {services.watch.warning}")
    if services.keys.origins.warning:
        notes.append(f"keys: {services.keys.origins.warning}")
    stopped = services.journal.spool.refusal
    if stopped:
        notes.append(f"journal: {stopped}; no new call is taken")
    notes += services.live.notes()
    loading = services.live.all_loading
    ready = not services.draining and not stopped and not loading
    if services.draining:
        notes.append("draining: the process is about to stop")
    away = services.ledger.failing or services.keys.stale
    return {
        "status": "ready" if ready else "not ready",
        "mode": "stop" if stopped else "spool" if away else "loading" if loading else "normal",
        "budgets": budgets.mode,
        "notes": notes,
    }


@get("/metrics", media_type="text/plain; version=0.0.4")
async def metrics(state: State) -> bytes:
    """Prometheus' text form."""
    services: Services = state.services
    services.metrics.ledger_lag.set(services.ledger.lag)
    services.metrics.reload_failures.set(len(services.policies.problems))
    services.metrics.price_problems.set(services.price_files.problem is not None)
    services.metrics.settings_changed.set(services.settings_source.warning is not None)
    services.metrics.budgets(services.budgets.mode, services.budgets.pending, await _budgets(services))
    if services.house is not None:
        return await services.house.metrics()
    return await asyncio.to_thread(services.metrics.render)


async def _budgets(services: Services) -> list[BudgetState]:
    try:
        return await services.budgets.snapshot()
    except StoreAway:
        return []


HANDLERS = (healthz, lives, readyz, is_ready, metrics)
