"""People and projects on disk, with an audit row before each change."""
from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import delete, insert, select, update

from gateway import audit
from gateway.access.people import Person
from gateway.core import clock
from gateway.ledger.registers import MEMBERSHIPS, PROJECTS, USERS
from gateway.ledger.sql import Store


class PeopleTable:
    """Reads and writes through the process's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> list[Person]:
        async with self._store.begin() as connection:
            rows = (await connection.execute(select(USERS))).mappings().all()
            roles = (await connection.execute(select(MEMBERSHIPS))).mappings().all()
        teams: dict[str, dict[str, str]] = defaultdict(dict)
        for row in roles:
            teams[row["user_id"]][row["team"]] = row["role"]
        return [Person(**row, teams=teams[row["id"]]) for row in rows]

    async def add(self, issuer: str, subject: str, name: str, actor: str, admin: bool = False) -> Person:
        """A person, new or let in again."""
        async with self._store.begin() as connection:
            known = select(USERS).where(USERS.c.issuer == issuer, USERS.c.subject == subject)
            row = (await connection.execute(known)).mappings().first()
            old = None if row is None else Person(**row)
            new = Person(
                id=old.id if old else f"user_{secrets.token_hex(8)}", issuer=issuer, subject=subject, name=name, admin=admin,
                created_us=old.created_us if old else clock.now_us(),
            )  # fmt: skip
            await audit.write(connection, actor, "user.add", new.id, before=_shown(old), after=_shown(new))
            values = {"name": name, "admin": admin, "disabled_us": None}
            if old is None:
                fixed = {"id": new.id, "issuer": issuer, "subject": subject, "created_us": new.created_us}
                await connection.execute(insert(USERS).values(**fixed, **values))
            else:
                await connection.execute(update(USERS).where(USERS.c.id == new.id).values(**values))
        return new

    async def disable(self, person: Person, actor: str) -> None:
        new = replace(person, disabled_us=clock.now_us())
        async with self._store.begin() as connection:
            await audit.write(connection, actor, "user.disable", person.id, before=_shown(person), after=_shown(new))
            await connection.execute(update(USERS).where(USERS.c.id == person.id).values(disabled_us=new.disabled_us))

    async def set_role(self, person: Person, team: str, role: str | None, actor: str) -> None:
        """None: out of the team."""
        mine = (MEMBERSHIPS.c.user_id == person.id, MEMBERSHIPS.c.team == team)
        before, after = person.teams.get(team), role
        async with self._store.begin() as connection:
            roles = ({"team": team, "role": before}, {"team": team, "role": after})
            await audit.write(connection, actor, "user.role", person.id, before=roles[0], after=roles[1])
            await connection.execute(delete(MEMBERSHIPS).where(*mine))
            if role is not None:
                await connection.execute(insert(MEMBERSHIPS).values(user_id=person.id, team=team, role=role))

    async def projects(self, team: str | None) -> list[dict[str, Any]]:
        wanted = select(PROJECTS).order_by(PROJECTS.c.team, PROJECTS.c.name)
        async with self._store.begin() as connection:
            rows = await connection.execute(wanted if team is None else wanted.where(PROJECTS.c.team == team))
            return [dict(row) for row in rows.mappings()]

    async def set_project(self, team: str, name: str, actor: str, archived: bool = False) -> dict[str, Any]:
        """Makes a project, brings it back, or puts it away."""
        now_us = clock.now_us()
        place = (PROJECTS.c.team == team, PROJECTS.c.name == name)
        async with self._store.begin() as connection:
            row = (await connection.execute(select(PROJECTS).where(*place))).mappings().first()
            old = None if row is None else dict(row)
            new = {"team": team, "name": name, "created_us": old["created_us"] if old else now_us}
            new["archived_us"] = now_us if archived else None
            action = "project.archive" if archived else "project.create"
            await audit.write(connection, actor, action, f"{team}/{name}", before=old, after=new)
            if old is None:
                await connection.execute(insert(PROJECTS).values(**new))
            else:
                await connection.execute(update(PROJECTS).where(*place).values(archived_us=new["archived_us"]))
        return new


def _shown(person: Person | None) -> Mapping[str, Any] | None:
    return None if person is None else {**asdict(person), "teams": dict(person.teams)}
