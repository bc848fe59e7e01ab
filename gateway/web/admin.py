"""What only an admin key may do: keys, policies in force, draining. Every change is audited before it is made."""
from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.params import Body, FromPath, FromQuery
from pydantic import BaseModel, ConfigDict, Field

from gateway.access.keys import KeyRecord, mint
from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, Forbidden, NotFound
from gateway.metering import listing
from gateway.services import Services
from gateway.web.routes import tenant_of

NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"


class NewKey(BaseModel):
    """What a key is made with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    team: str = Field(pattern=NAME)
    project: str | None = Field(None, pattern=NAME)
    name: str = Field("", max_length=128)
    role: str = Field("member", pattern="^(member|lead|admin)$")
    expires_us: int | None = Field(None, gt=0)


def admin_of(request: Request[Any, Any, State]) -> Tenant:
    """Raises `Unauthorized` or `Forbidden`."""
    tenant = tenant_of(request)
    if not tenant.admin:
        raise Forbidden("this needs an admin key; `tollway up` keeps one in DATA/keys/admin")
    return tenant


def _shown(record: KeyRecord) -> dict[str, Any]:
    fields = ("id", "team", "project", "name", "role", "created_us", "expires_us", "revoked_us")
    return {name: getattr(record, name) for name in fields}


@get("/tollway/admin/keys")
async def list_keys(request: Request[Any, Any, State], state: State) -> list[dict[str, Any]]:
    """All keys, without their secrets."""
    admin_of(request)
    return [_shown(record) for record in state.services.keys.records()]


@post("/tollway/admin/keys", status_code=201)
async def create_key(
    request: Request[Any, Any, State], state: State, data: Annotated[NewKey, Body()]
) -> dict[str, Any]:
    """A new key; its secret is in this answer and nowhere else."""
    services: Services = state.services
    tenant, now_us = admin_of(request), time.time_ns() // 1_000
    if data.expires_us is not None and data.expires_us <= now_us:
        raise BadRequest("expires lies in the past", param="expires_us")
    key_id, secret = mint()
    record = KeyRecord(
        id=key_id,
        team=data.team,
        digest=services.keys.digest(secret.reveal()),
        project=data.project,
        name=data.name,
        role=data.role,
        created_us=now_us,
        expires_us=data.expires_us,
    )
    await services.key_table.insert(record, actor=tenant.key_id)
    services.keys.put(record)
    return {**_shown(record), "key": secret.reveal()}


@delete("/tollway/admin/keys/{key_id:str}", status_code=200)
async def revoke_key(request: Request[Any, Any, State], state: State, key_id: FromPath[str]) -> dict[str, Any]:
    """From now on the key opens nothing; calls under way end as they would."""
    services: Services = state.services
    tenant = admin_of(request)
    record = await services.key_table.revoke(key_id, time.time_ns() // 1_000, actor=tenant.key_id)
    if record is None:
        raise NotFound(f"there is no key {key_id!r}; `tollway keys list` shows them")
    services.keys.put(record)
    return _shown(record)


@get("/tollway/admin/policies")
async def policies(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """Policy files in force, and what is wrong with newer ones."""
    admin_of(request)
    store = state.services.policies
    return {
        "in_force": {policy.team: policy.version for policy in store.current.policies.values()},
        "problems": [str(problem) for problem in store.problems],
    }


@get("/tollway/admin/budgets")
async def budgets(request: Request[Any, Any, State], state: State) -> list[dict[str, Any]]:
    """Limits, spent and held, of every budget that was used since the start."""
    admin_of(request)
    return [asdict(budget) for budget in await state.services.budgets.snapshot()]


@get("/tollway/admin/prices")
async def prices(request: Request[Any, Any, State], state: State, model: FromQuery[str]) -> list[dict[str, Any]]:
    """The price rows in force here for PROVIDER/MODEL: every tier, region and band, the operator's files included."""
    admin_of(request)
    provider, _, name = model.partition("/")
    return listing.show(state.services.prices, provider, name, time.time_ns() // 1_000)


@post("/tollway/admin/drain", status_code=202)
async def drain(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """As SIGTERM: not ready at once, open answers go on, then the program ends, all its workers too."""
    services: Services = state.services
    tenant = admin_of(request)
    await services.key_table.audit(tenant.key_id, "drain", "gateway", {})
    os.kill(os.getpid() if services.house is None else os.getppid(), signal.SIGTERM)
    return {"status": "draining", "unready_s": services.settings.unready_s, "drain_s": services.settings.drain_s}


@post("/tollway/admin/backends")
async def create_backend(request: Request[Any, Any, State], state: State) -> None:
    """Always refused: no address that a request carries is ever called."""
    admin_of(request)
    error = BadRequest("backends are named in tollway.yaml; an address in a request is never called", param="url")
    error.code = "url_not_allowed"
    raise error


HANDLERS = (drain, create_backend, list_keys, create_key, revoke_key, policies, budgets, prices)
