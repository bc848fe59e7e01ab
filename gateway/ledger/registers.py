"""Tables beside the ledger: people and their teams, projects, and what one process must remember for another.

They live in the ledger's database and belong to its schema (`schema.py`); none of them is read on the way of a call that
does not ask for it.
"""
from __future__ import annotations

from typing import Any, cast

from sqlalchemy import BigInteger, LargeBinary, UniqueConstraint
from sqlmodel import Field

from gateway.ledger.tables import Json, Tables, table


class UserRow(Tables, table=True):
    """A person, known by what vouches for them: an issuer (or `proxy`) and the subject that it names."""

    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("issuer", "subject", name="users_issuer_subject"),)

    id: str = Field(primary_key=True)
    issuer: str
    subject: str
    name: str = ""
    admin: bool = False
    created_us: int = Field(sa_type=BigInteger)
    disabled_us: int | None = Field(default=None, sa_type=BigInteger)


class MembershipRow(Tables, table=True):
    """What a person may do in a team: `member` or `lead`."""

    __tablename__ = "memberships"

    user_id: str = Field(primary_key=True)
    team: str = Field(primary_key=True)
    role: str


class ProjectRow(Tables, table=True):
    """A part of a team's work that keys, budgets and reports may name."""

    __tablename__ = "projects"

    team: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    created_us: int = Field(sa_type=BigInteger)
    archived_us: int | None = Field(default=None, sa_type=BigInteger)


class KeptRow(Tables, table=True):
    """What a provider keeps for a team (an answer, a file, a batch), and the booking that waits for its usage."""

    __tablename__ = "kept"

    name: str = Field(primary_key=True)
    team: str
    backend: str
    at_us: int = Field(sa_type=BigInteger, index=True)
    pending: dict[str, Any] | None = Field(default=None, sa_type=cast(Any, Json))
    """The entry and the hold of an answer whose usage is still to come."""
    tokens: int | None = Field(default=None, sa_type=BigInteger)
    """Of an answer, with all that it goes on from."""


class IdempotencyRow(Tables, table=True):
    """One use of an `Idempotency-Key`. `key` is a digest; the answer is kept only where it is small and whole."""

    __tablename__ = "idempotency"

    team: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    fingerprint: str
    call_id: str
    at_us: int = Field(sa_type=BigInteger)
    expires_us: int = Field(sa_type=BigInteger, index=True)
    status: int | None = None
    """HTTP status of the finished call; NULL while it runs."""
    headers: list[Any] | None = Field(default=None, sa_type=cast(Any, Json))
    answer: bytes | None = Field(default=None, sa_type=cast(Any, LargeBinary))


USERS, MEMBERSHIPS, PROJECTS = table(UserRow), table(MembershipRow), table(ProjectRow)
KEPT, IDEMPOTENCY = table(KeptRow), table(IdempotencyRow)
