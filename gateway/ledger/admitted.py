"""Who is let in to look: a key by its secret's digest, somebody who signs in and the teams they are in."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select

from gateway.ledger.reader import Reader
from gateway.ledger.registers import MEMBERSHIPS, USERS
from gateway.ledger.tables import KEYS


@dataclass(frozen=True, slots=True)
class Person:
    """What somebody who signs in may see."""

    name: str
    admin: bool
    teams: tuple[str, ...]


def key_by_digest(reader: Reader, digest: str, now_us: int) -> dict[str, Any] | None:
    """A key that is good now: `id, team, project, name, role`."""
    in_time = or_(KEYS.c.expires_us.is_(None), KEYS.c.expires_us > now_us)
    good = [KEYS.c.digest == digest, KEYS.c.revoked_us.is_(None), in_time]
    columns = [KEYS.c[name] for name in ("id", "team", "project", "name", "role")]
    return next(iter(reader.read(select(*columns).where(*good))[0]), None)


def person(reader: Reader, issuer: str, subject: str) -> Person | None:
    """Somebody who is not disabled."""
    u, m = USERS.c, MEMBERSHIPS.c
    good = [u.issuer == issuer, u.subject == subject, u.disabled_us.is_(None)]
    found = reader.read(select(u.id, u.name, u.admin).where(*good))[0]
    if not found:
        return None
    teams = reader.read(select(m.team).where(m.user_id == found[0]["id"]).order_by(m.team))[0]
    return Person(found[0]["name"] or subject, bool(found[0]["admin"]), tuple(row["team"] for row in teams))
