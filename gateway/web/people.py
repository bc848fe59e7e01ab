"""People, their roles in teams, and projects. Admins for all teams, leads for their own."""
from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from litestar import Request, delete, get, post, put
from litestar.datastructures import State
from litestar.params import Body, FromPath
from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.access import people
from gateway.access.people import Person
from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, NotFound
from gateway.services import Services
from gateway.web.admin import NAME, admin_of, lead_of, leads_only
from gateway.web.routes import tenant_of

Asked = Request[Any, Any, State]


class NewUser(BaseModel):
    """A person to let in: by the subject that the identity provider or the proxy will name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subject: str = Field(min_length=1, max_length=256)
    issuer: str | None = Field(None, max_length=512)
    """Default: the identity provider of the settings, else the proxy."""
    name: str = Field("", max_length=128)
    admin: bool = False
    team: str | None = Field(None, pattern=NAME)
    role: Literal["member", "lead"] = "member"

    @field_validator("subject", "name")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError("has characters that do not print")
        return text


class TeamRole(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["member", "lead"]


class NewProject(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    team: str = Field(pattern=NAME)
    name: str = Field(pattern=NAME)


@get("/tollway/me")
async def me(request: Asked, state: State) -> dict[str, Any]:
    """Who asks, and what they may do."""
    tenant = tenant_of(request)
    fields = {"team": tenant.team, "project": tenant.project, "key_id": tenant.key_id, "user_id": tenant.user}
    return {**fields, "role": people.role_of(tenant)}


@get("/tollway/admin/users")
async def list_users(request: Asked, state: State) -> list[dict[str, Any]]:
    """Everybody who may sign in; a lead sees the own team."""
    tenant = lead_of(request)
    return [_shown(one, tenant) for one in state.services.people.all() if tenant.admin or tenant.team in one.teams]


@post("/tollway/admin/users", status_code=201, guards=[leads_only])
async def add_user(request: Asked, state: State, data: Annotated[NewUser, Body()]) -> dict[str, Any]:
    """Let somebody in, into a team if one is named. Only an admin makes an admin."""
    services: Services = state.services
    tenant = tenant_of(request)
    if data.admin or data.team is None:
        people.need_admin(tenant)
    else:
        people.may_grant(tenant, data.team, data.role)
    oidc = services.settings.login.oidc_issuer
    issuer = data.issuer or oidc or people.PROXY
    known = next((one for one in services.people.all() if (one.issuer, one.subject) == (issuer, data.subject)), None)
    if known is None or tenant.admin:           # a lead adds to the own team and changes nobody
        person = await services.people_table.add(issuer, data.subject, data.name, tenant.key_id, admin=data.admin)
    else:
        person = known
    if data.team is not None:
        await services.people_table.set_role(person, data.team, data.role, tenant.key_id)
    return await _now(services, person.id, tenant)


@delete("/tollway/admin/users/{user_id:str}", status_code=200)
async def disable_user(request: Asked, state: State, user_id: FromPath[str]) -> dict[str, Any]:
    """They can no longer sign in; keys made for them stay until they are revoked."""
    services: Services = state.services
    tenant = admin_of(request)
    await services.people_table.disable(_person(services, tenant, user_id), tenant.key_id)
    return await _now(services, user_id, tenant)


@put("/tollway/admin/users/{user_id:str}/teams/{team:str}", guards=[leads_only])
async def set_role(
    request: Asked, state: State, user_id: FromPath[str], team: FromPath[str], data: Annotated[TeamRole, Body()]
) -> dict[str, Any]:
    """A role in a team."""
    services: Services = state.services
    tenant = tenant_of(request)
    people.may_grant(tenant, team, data.role)
    if re.fullmatch(NAME, team) is None:
        raise BadRequest("a team's name has small letters, digits and . _ - only", param="team")
    await services.people_table.set_role(_person(services, tenant, user_id), team, data.role, tenant.key_id)
    return await _now(services, user_id, tenant)


@delete("/tollway/admin/users/{user_id:str}/teams/{team:str}", status_code=200)
async def leave_team(request: Asked, state: State, user_id: FromPath[str], team: FromPath[str]) -> dict[str, Any]:
    """Out of a team."""
    services: Services = state.services
    tenant = tenant_of(request)
    people.need_lead(tenant, team)
    await services.people_table.set_role(_person(services, tenant, user_id), team, None, tenant.key_id)
    return await _now(services, user_id, tenant)


@get("/tollway/admin/projects")
async def list_projects(request: Asked, state: State) -> list[dict[str, Any]]:
    """Projects of all teams, for a lead or member those of the own."""
    tenant, services = tenant_of(request), state.services
    found: list[dict[str, Any]] = await services.people_table.projects(None if tenant.admin else tenant.team)
    return found


@post("/tollway/admin/projects", status_code=201, guards=[leads_only])
async def add_project(request: Asked, state: State, data: Annotated[NewProject, Body()]) -> dict[str, Any]:
    """A project within a team, or one brought back."""
    tenant = tenant_of(request)
    people.need_lead(tenant, data.team)
    made: dict[str, Any] = await state.services.people_table.set_project(data.team, data.name, tenant.key_id)
    return made


@delete("/tollway/admin/projects/{team:str}/{name:str}", status_code=200)
async def archive_project(request: Asked, state: State, team: FromPath[str], name: FromPath[str]) -> dict[str, Any]:
    """Put away: reports still show it, keys of it go on until they are revoked."""
    tenant, services = tenant_of(request), state.services
    people.need_lead(tenant, team)
    if not any(one["name"] == name for one in await services.people_table.projects(team)):
        raise NotFound(f"team {team} has no project {name!r}")
    put_away: dict[str, Any] = await services.people_table.set_project(team, name, tenant.key_id, archived=True)
    return put_away


def _person(services: Services, tenant: Tenant, user_id: str) -> Person:
    """Raises `NotFound`, for a lead the same for people of other teams."""
    person = services.people.person(user_id)
    if person is None or not (tenant.admin or tenant.team in person.teams):
        raise NotFound(f"there is no user {user_id!r}; `tollway users list` shows them")
    return person


async def _now(services: Services, user_id: str, tenant: Tenant) -> dict[str, Any]:
    """The person as the database has them, known here too from now on."""
    services.people.replace(await services.people_table.load())
    person = services.people.person(user_id)
    assert person is not None
    return _shown(person, tenant)


def _shown(person: Person, tenant: Tenant) -> dict[str, Any]:
    """A lead does not see what a person is in other teams."""
    teams = {team: role for team, role in person.teams.items() if tenant.admin or team == tenant.team}
    fields = {"id": person.id, "issuer": person.issuer, "subject": person.subject, "name": person.name}
    return {**fields, "admin": person.admin, "teams": teams, "created_us": person.created_us, "disabled_us": person.disabled_us}


HANDLERS = (me, list_users, add_user, disable_user, set_role, leave_team, list_projects, add_project, archive_project)
