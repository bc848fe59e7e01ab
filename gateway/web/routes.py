"""The caller's own calls, runs, sums and models as JSON; each sees its team's, an admin key sees all."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from litestar import Request, Response, get
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.params import FromPath

from gateway import dialects
from gateway.access.origins import FORWARDED, Origin
from gateway.access.people import Person, as_tenant
from gateway.core import clock
from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, ModelNotFound, NotFound, Overloaded
from gateway.ledger import query
from gateway.ledger.last_known import Question
from gateway.ledger.reports import BadQuery, LedgerUnavailable, UnknownZone
from gateway.services import Services
from gateway.web.heads import presented_key
from router_policies.globs import first_match, globs
from router_policies.policy import visible_models

PERSON = "tollway_person"
"""Where `sign_in` leaves who it let in."""
_AWAY_S = 3.0
"""How long a report is waited for while the database takes no entries: one that is frozen does not say that it is away."""


def tenant_of(request: ASGIConnection[Any, Any, Any, State]) -> Tenant:
    """Who asks: the holder of a key, or a person whom `sign_in` let in. Raises `Unauthorized`."""
    services: Services = request.app.state.services
    person: Person | None = request.scope["state"].get(PERSON)
    if person is not None:
        return as_tenant(person, request.query_params.get("team"))
    origin = Origin(request.client.host if request.client else "", ",".join(request.headers.getall(FORWARDED, [])) or None)
    tenant = services.keys.tenant(presented_key(request.headers), clock.now_us(), origin)
    services.keys.origins.seen(origin.peer, request.headers)
    return tenant


def _scope(tenant: Tenant) -> str | None:
    return None if tenant.admin else tenant.team


def dialect_of(request: Request[Any, Any, Any]) -> str:
    """Which error and list shape this caller reads: Anthropic's clients name a version."""
    path = request.url.path
    anthropic = path.startswith("/v1/messages") or "anthropic-version" in request.headers
    return "anthropic_messages" if anthropic else "openai_chat"


@get("/v1/models")
async def models(request: Request[Any, Any, State], state: State) -> Response[bytes]:
    """The models that the caller's team and key may use, aliases too."""
    names = _visible(tenant_of(request), state.services)
    return Response(dialects.models_body(dialect_of(request), names), media_type="application/json")


@get("/v1/models/{name:path}")
async def model(request: Request[Any, Any, State], state: State, name: FromPath[str]) -> Response[bytes]:
    """One model, or 404 in the caller's shape."""
    name = name.lstrip("/")
    if name not in _visible(tenant_of(request), state.services):
        raise ModelNotFound(f"the model {name!r} does not exist, or your team or key may not use it", param="model")
    only = json.loads(dialects.models_body(dialect_of(request), [name]))["data"][0]
    return Response(json.dumps(only).encode(), media_type="application/json")


def _visible(tenant: Tenant, services: Services) -> list[str]:
    names = services.fleet.models
    if not tenant.admin:
        names = visible_models(services.policies.current.for_team(tenant.team), names)
    if not tenant.models:
        return names
    its_own = globs(tenant.models)
    return [name for name in names if first_match(its_own, name) is not None]


@get("/tollway/calls/{call_id:str}")
async def call(request: Request[Any, Any, State], state: State, call_id: FromPath[str]) -> dict[str, Any]:
    """One call: decision, attempts, tokens by class, price rows."""
    tenant, services = tenant_of(request), state.services
    found = await _read(services, _scope(tenant), ("call", {"id": call_id}), services.reports.call, call_id, _scope(tenant))
    if found is None:
        raise NotFound(f"there is no call {call_id!r} of your team; the id stands in the answer header x-tollway-call")
    return found


@get("/tollway/runs/{run_id:str}")
async def run(request: Request[Any, Any, State], state: State, run_id: FromPath[str]) -> dict[str, Any]:
    """One agent's run: sums, sub-goals, latest calls."""
    tenant, services = tenant_of(request), state.services
    found = await _read(services, _scope(tenant), ("run", {"id": run_id}), services.reports.run, run_id, _scope(tenant))
    if found is None:
        raise NotFound(f"there is no run {run_id!r} of your team; a run is named by the request header x-tollway-run")
    return found


@get("/tollway/runs/{run_id:str}/trace")
async def run_trace(request: Request[Any, Any, State], state: State, run_id: FromPath[str]) -> dict[str, Any]:
    """The run's calls as a trace file has them, for `tollway policy backtest --trace`: tokens, times and labels, no text."""
    tenant, services = tenant_of(request), state.services
    question = ("trace", {"id": run_id})
    found = await _read(services, _scope(tenant), question, services.reports.run_trace, run_id, _scope(tenant))
    if found is None:
        raise NotFound(f"there is no answered call of a run {run_id!r} of your team")
    return found


@get("/tollway/usage")
async def usage(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """Sums as `tollway report` prints them: `report`, `by`, `since`, `until`, `tz`, and filters such as `model=`."""
    tenant, services = tenant_of(request), state.services
    asked = dict(request.query_params)
    if not tenant.admin and asked.get("team", tenant.team) != tenant.team:
        raise NotFound("your key sees its own team's figures only")
    if not tenant.admin:
        asked["team"] = tenant.team
    found = await _read(services, _scope(tenant), ("usage", asked), query.answer, services.reports, asked)
    assert found is not None
    return found


async def _read(
    services: Services, scope: str | None, question: Question, report: Callable[..., dict[str, Any] | None], *arguments: Any
) -> dict[str, Any] | None:  # fmt: skip
    """From the database; while it is away, as it was last read, with `as_of`. Raises `Overloaded` where it never was."""
    known, away = services.last_known, services.ledger.failing
    if away and (found := known.find(scope, question)) is not None:
        return found
    try:
        async with asyncio.timeout(_AWAY_S if away else None):
            await services.ledger.flush(1.0)
            found = await asyncio.to_thread(report, *arguments)
    except (LedgerUnavailable, TimeoutError) as error:
        if (found := known.find(scope, question)) is not None:
            return found
        raise Overloaded(f"the ledger cannot be read right now: {error}", retry_after_s=2) from error
    except (BadQuery, UnknownZone, ValueError) as error:
        raise BadRequest(str(error)) from error
    if found is not None:
        known.keep(scope, question, found)
    return found


HANDLERS = (models, model, call, run, run_trace, usage)
