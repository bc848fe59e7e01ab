"""Verdicts on subgoals, and alerts: what was told, what would be, and a test of the channels."""
from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.params import Body, FromPath
from pydantic import BaseModel, ConfigDict, Field

from gateway.access import people
from gateway.alerts import Alert, rules
from gateway.alerts.watch import send_all
from gateway.core import clock
from gateway.core.errors import BadRequest, NotFound, Overloaded
from gateway.ledger.reports import LedgerUnavailable
from gateway.ledger.tables import BACKTEST
from gateway.ledger.verdicts import verdict, verdict_json
from gateway.services import Services
from gateway.watched import bounds_of, channels_of, limits_of
from gateway.web.routes import tenant_of
from router_policies.tally import FIGURES


class Verdict(BaseModel):
    """What became of a subgoal."""

    model_config = ConfigDict(extra="forbid", strict=True)

    passed: bool
    evidence: str = Field("", max_length=4_000, description="how that is known: a test's name, a diff, a judge's words")


@post("/tollway/runs/{run_id:str}/subgoals/{name:str}", status_code=201)
async def judge(
    request: Request[Any, Any, State], state: State, run_id: FromPath[str], name: FromPath[str],
    data: Annotated[Verdict, Body()],
) -> dict[str, Any]:
    """Passed or failed, with evidence; the last verdict holds, the earlier ones stay in the ledger."""
    services: Services = state.services
    tenant = tenant_of(request)
    if len(name) > 128 or not name.isprintable():
        raise BadRequest("a subgoal's name is printable text of at most 128 characters", param="name")
    await services.ledger.flush(1.0)
    scope = None if tenant.admin else tenant.team
    try:
        found = await asyncio.to_thread(services.reports.run, run_id, scope)
    except LedgerUnavailable as error:
        raise Overloaded(f"the ledger cannot be read right now: {error}", retry_after_s=2) from error
    if found is None:
        raise NotFound(f"there is no run {run_id!r} of your team; a run is named by the request header x-tollway-run")
    entry = verdict(
        team=found["team"], project=tenant.project, key_id=tenant.key_id, run=run_id, subgoal=name, passed=data.passed,
        evidence=data.evidence, at_us=clock.now_us(),
    )  # fmt: skip
    await services.ledger.append(entry)
    return {"run": run_id, "subgoal": name, **verdict_json(entry)}


@get("/tollway/admin/alerts")
async def alerts(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """What was told lately, what would be told now if it were new, and where."""
    services: Services = state.services
    people.need_admin(tenant_of(request))

    def look() -> tuple[list[dict[str, Any]], list[Alert]]:
        limits = limits_of(services.policies, services.reports)
        now = rules.found(services.reports, limits, bounds_of(services.settings), clock.now_us())
        return services.reports.alerts(), now

    try:
        told, now = await asyncio.to_thread(look)
    except LedgerUnavailable as error:
        raise Overloaded(f"the ledger cannot be read right now: {error}", retry_after_s=2) from error
    channels = [{"name": c.name, "kind": c.shape} for c in channels_of(services.settings)]
    return {"channels": channels, "told": told, "now": [asdict(alert) for alert in now]}


@post("/tollway/admin/alerts/test", status_code=200)
async def test(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """One harmless alert by every channel, and what each said."""
    services: Services = state.services
    tenant = tenant_of(request)
    people.need_admin(tenant)
    channels = channels_of(services.settings)
    if not channels:
        raise BadRequest("no channel is configured: add one under `alerts: channels:` in tollway.yaml, see docs/dashboard.md")
    now_us = clock.now_us()
    text = f"Sent by {tenant.key_id} to see whether alerts arrive. Nothing is wrong."
    alert = Alert(id=f"test/{now_us}", kind="test", team="", title="test", text=text, at_us=now_us, level="info")
    return {"channels": await send_all(channels, alert)}


class Backtest(BaseModel):
    """What `tollway policy backtest` found."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = Field(min_length=1, max_length=512)
    result: dict[str, Any]


@post("/tollway/admin/backtests", status_code=201)
async def keep_backtest(
    request: Request[Any, Any, State], state: State, data: Annotated[Backtest, Body()]
) -> dict[str, Any]:
    """Kept in the audit trail, for the dashboard's page on policies."""
    tenant = tenant_of(request)
    people.need_admin(tenant)
    figures = data.result.get("all")
    if not isinstance(figures, dict) or not all(isinstance(figures.get(name), dict) for name in FIGURES):
        raise BadRequest("result is not what `tollway policy backtest --json` prints", param="result")
    await state.services.key_table.audit(tenant.key_id, BACKTEST, data.title, {"result": data.result})
    return {"title": data.title}


HANDLERS = (judge, alerts, test, keep_backtest)
