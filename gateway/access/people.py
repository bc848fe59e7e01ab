"""People and what they may do: a person is known by who vouches for them, and has a role in each of their teams.

Rights are checked here and nowhere else. An admin may do everything; a lead looks after the keys, projects and people of
their own team and never hands out more than they have; a member sees their team's figures. What is not allowed is refused.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, Forbidden, Unauthorized

Role = Literal["member", "lead", "admin"]
_RANK: Mapping[str, int] = {"member": 0, "lead": 1, "admin": 2}
PROXY = "proxy"
"""The issuer of people whom a trusted proxy names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Someone who signs in. Times are microseconds since the epoch."""

    id: str
    issuer: str
    subject: str
    name: str = ""
    admin: bool = False
    teams: Mapping[str, str] = field(default_factory=dict)
    """Team -> role."""
    created_us: int = 0
    disabled_us: int | None = None


class People:
    """All people in memory."""

    def __init__(self, people: Iterable[Person] = ()) -> None:
        self.replace(people)

    def replace(self, people: Iterable[Person]) -> None:
        self._by_subject = {(person.issuer, person.subject): person for person in people}

    def all(self) -> list[Person]:
        return sorted(self._by_subject.values(), key=lambda person: person.created_us)

    def person(self, id: str) -> Person | None:
        return next((person for person in self._by_subject.values() if person.id == id), None)

    def find(self, issuer: str, subject: str) -> Person:
        """Raises `Unauthorized` for people whom nobody has let in."""
        person = self._by_subject.get((issuer, subject))
        if person is None or person.disabled_us is not None:
            raise Unauthorized("you are signed in, but not let in here; ask an admin for `tollway users add`")
        return person


def as_tenant(person: Person, team: str | None) -> Tenant:
    """The person as one of their teams, the one that is asked for. Raises `BadRequest` or `Forbidden`."""
    if team is None and len(person.teams) == 1:
        (team,) = person.teams
    if person.admin:
        return Tenant(team=team or "operator", key_id=person.id, user=person.id, admin=True)
    if team is None:
        mine = ", ".join(sorted(person.teams)) or "you have none"
        raise BadRequest(f"name one of your teams with ?team=: {mine}", param="team")
    if team not in person.teams:
        raise Forbidden("you are not in that team")
    return Tenant(team=team, key_id=person.id, user=person.id, lead=person.teams[team] == "lead")


def role_of(tenant: Tenant) -> Role:
    return "admin" if tenant.admin else "lead" if tenant.lead else "member"


def need_admin(tenant: Tenant) -> None:
    """Raises `Forbidden`."""
    if not tenant.admin:
        raise Forbidden("this needs an admin key; `tollway up` keeps one in DATA/keys/admin")


def need_lead(tenant: Tenant, team: str | None = None) -> None:
    """An admin, or a lead of that team (of any, if none is named). Raises `Forbidden`, also for teams that there are not."""
    if not tenant.admin and not (tenant.lead and team in (None, tenant.team)):
        raise Forbidden("this needs a lead of the team, or an admin")


def may_grant(tenant: Tenant, team: str, role: str) -> None:
    """Nobody hands out more than they have. Raises `Forbidden`."""
    need_lead(tenant, team)
    if _RANK[role] > _RANK[role_of(tenant)]:
        raise Forbidden(f"a {role_of(tenant)} cannot make a {role}")
