"""Keys, policies in force, budgets, prices and the audit trail. Every change is audited before it is made.

An admin may do all of it; a lead looks after the keys of the own team. Rights are checked on the matched route, by
`access/people.py`.
"""
from __future__ import annotations

import os
import signal
from dataclasses import asdict
from typing import Annotated, Any, Literal

from litestar import Request, delete, get, patch, post
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.params import Body, FromPath, FromQuery
from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.access import origins, people
from gateway.access.keys import KeyRecord, mint
from gateway.budgets import MOST_NANOS
from gateway.budgets.windows import zone
from gateway.core import clock
from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, NotFound
from gateway.metering import listing
from gateway.services import Services
from gateway.web.routes import tenant_of

_LATEST_US = 2**63 - 1
_YEAR_9999_US = 253_402_300_799_000_000
NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"


class Budget(BaseModel):
    """What one key may spend in a window of the calendar, beside the team's budgets."""

    model_config = ConfigDict(extra="forbid", strict=True)

    limit_nanos: int = Field(ge=0, le=MOST_NANOS)
    window: Literal["day", "week", "month", "total"] = "month"
    timezone: str = "UTC"

    @field_validator("timezone")
    @classmethod
    def _there(cls, name: str) -> str:
        zone(name)
        return name


class Limits(BaseModel):
    """What else a key is narrowed to."""

    model_config = ConfigDict(extra="forbid", strict=True)

    models: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list, max_length=100)
    addresses: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=100)

    @field_validator("addresses")
    @classmethod
    def _networks(cls, texts: list[str]) -> list[str]:
        return [str(network) for network in origins.networks(texts)]


class KeyChange(BaseModel):
    """What can be changed of a key; its team, role and secret cannot."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field("", max_length=128)
    expires_us: int | None = Field(None, gt=0, le=_YEAR_9999_US)
    budget: Budget | None = None
    limits: Limits | None = None

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("has characters that do not print")
        return name


class NewKey(KeyChange):
    """What a key is made with."""

    team: str = Field(pattern=NAME)
    project: str | None = Field(None, pattern=NAME)
    role: Literal["member", "lead", "admin"] = "member"
    user_id: str | None = Field(None, max_length=64)


def admin_of(request: Request[Any, Any, State]) -> Tenant:
    """Raises `Unauthorized` or `Forbidden`."""
    tenant = tenant_of(request)
    people.need_admin(tenant)
    return tenant


def lead_of(request: Request[Any, Any, State]) -> Tenant:
    """An admin or a team's lead. Raises `Unauthorized` or `Forbidden`."""
    tenant = tenant_of(request)
    people.need_lead(tenant)
    return tenant


def leads_only(connection: ASGIConnection[Any, Any, Any, State], _: BaseRouteHandler) -> None:
    """A guard: who has no rights here learns nothing of what a body should look like."""
    people.need_lead(tenant_of(connection))


def _shown(record: KeyRecord) -> dict[str, Any]:
    fields = (
        "id", "team", "project", "name", "role", "created_us", "expires_us", "revoked_us", "user_id", "budget", "limits",
    )  # fmt: skip
    return {name: getattr(record, name) for name in fields}


def _own(services: Services, tenant: Tenant, key_id: str) -> KeyRecord:
    """A key that the caller may see. Raises `NotFound`, the same for one of another team and one that there is not."""
    record = services.keys.record(key_id)
    if record is None or not (tenant.admin or record.team == tenant.team):
        raise NotFound(f"there is no key {key_id!r}; `tollway keys list` shows them")
    people.may_grant(tenant, record.team, record.role)
    return record


@get("/tollway/admin/keys")
async def list_keys(request: Request[Any, Any, State], state: State) -> list[dict[str, Any]]:
    """All keys, for a lead those of the team, without their secrets."""
    tenant = lead_of(request)
    return [_shown(record) for record in state.services.keys.records() if tenant.admin or record.team == tenant.team]


@post("/tollway/admin/keys", status_code=201, guards=[leads_only])
async def create_key(
    request: Request[Any, Any, State], state: State, data: Annotated[NewKey, Body()]
) -> dict[str, Any]:
    """A new key; its secret is in this answer and nowhere else."""
    services: Services = state.services
    tenant, now_us = tenant_of(request), clock.now_us()
    people.may_grant(tenant, data.team, data.role)
    _check_expiry(data, now_us)
    if data.user_id is not None and services.people.person(data.user_id) is None:
        raise BadRequest(f"there is no user {data.user_id!r}; `tollway users list` shows them", param="user_id")
    key_id, secret = mint()
    wish = data.model_dump(mode="json")
    if data.limits is not None:
        wish["limits"] = data.limits.model_dump(mode="json", exclude_unset=True)
    record = KeyRecord(id=key_id, digest=services.keys.digest(secret.reveal()), created_us=now_us, **wish)
    record = await services.key_table.insert(record, actor=tenant.key_id)
    services.keys.put(record)
    return {**_shown(record), "key": secret.reveal()}


@patch("/tollway/admin/keys/{key_id:str}", guards=[leads_only])
async def change_key(
    request: Request[Any, Any, State], state: State, key_id: FromPath[str], data: Annotated[KeyChange, Body()]
) -> dict[str, Any]:
    """Another name, expiry, budget or other limits; what is not named stays."""
    services: Services = state.services
    tenant = lead_of(request)
    _own(services, tenant, key_id)
    _check_expiry(data, clock.now_us())
    fields = data.model_dump(mode="json", exclude_unset=True)
    record = await services.key_table.change(key_id, tenant.key_id, fields) if fields else services.keys.record(key_id)
    assert record is not None
    services.keys.put(record)
    return _shown(record)


@delete("/tollway/admin/keys/{key_id:str}", status_code=200)
async def revoke_key(request: Request[Any, Any, State], state: State, key_id: FromPath[str]) -> dict[str, Any]:
    """From now on the key opens nothing, at other replicas within five seconds; calls under way end as they would."""
    services: Services = state.services
    tenant = lead_of(request)
    _own(services, tenant, key_id)
    record = await services.key_table.revoke(key_id, clock.now_us(), actor=tenant.key_id)
    assert record is not None
    services.keys.put(record)
    return _shown(record)


def _check_expiry(data: KeyChange, now_us: int) -> None:
    if data.expires_us is not None and data.expires_us <= now_us:
        raise BadRequest("expires lies in the past", param="expires_us")


@get("/tollway/admin/policies")
async def policies(request: Request[Any, Any, State], state: State) -> dict[str, Any]:
    """Policy files in force, and what is wrong with newer ones; a lead sees the team's version."""
    tenant, store = lead_of(request), state.services.policies
    teams = [policy for policy in store.current.policies.values() if tenant.admin or policy.team == tenant.team]
    names = [policy.team for policy in teams]
    return {
        "in_force": {policy.team: policy.version for policy in teams},
        "on_trial": {name: how for name in names if (how := state.services.trials.standing(store.current, name)) is not None},
        "problems": [str(problem) for problem in store.problems] if tenant.admin else [],
    }


@get("/tollway/admin/budgets")
async def budgets(request: Request[Any, Any, State], state: State) -> list[dict[str, Any]]:
    """Limits, spent and held, of every budget that was used since the start; a lead sees the team's."""
    tenant = lead_of(request)
    found = await state.services.budgets.snapshot()
    return [asdict(budget) for budget in found if tenant.admin or budget.team == tenant.team]


@get("/tollway/admin/prices")
async def prices(request: Request[Any, Any, State], state: State, model: FromQuery[str]) -> list[dict[str, Any]]:
    """The price rows in force here for PROVIDER/MODEL: every tier, region and band, the operator's files included."""
    admin_of(request)
    provider, _, name = model.partition("/")
    return listing.show(state.services.prices, provider, name, clock.now_us())


@get("/tollway/admin/engines")
async def engines(request: Request[Any, Any, State], state: State) -> list[dict[str, Any]]:
    """Engines of one's own: what each was found to do, and the flags for what it does not."""
    admin_of(request)
    found: list[dict[str, Any]] = state.services.live.found()
    return found


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



@get("/tollway/admin/audit")
async def trail(
    request: Request[Any, Any, State], state: State, limit: FromQuery[int] = 100, before_us: FromQuery[int | None] = None
) -> list[dict[str, Any]]:
    """Who changed what, newest first; `before_us` gives the next page."""
    admin_of(request)
    before_us = None if before_us is None else min(max(before_us, 0), _LATEST_US)
    found: list[dict[str, Any]] = await state.services.key_table.trail(min(max(limit, 1), 1_000), before_us)
    return found


HANDLERS = (drain, create_backend, list_keys, create_key, change_key, revoke_key, policies, budgets, prices, engines, trail)
