"""The ledger, keys and audit trail as SQL tables, and an entry as a row and back.

Flat columns, one per fact that a report may ask for: token classes are columns (NULL: not reported, 0: reported as none), what
has no fixed shape is JSON. Times are whole microseconds since the epoch and money is whole nano-dollars, both BIGINT: SQLite
gives datetimes back without their zone, and floats do not add up.
"""
from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

import orjson
from sqlalchemy import JSON, BigInteger, Index, MetaData, Table, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from gateway.core.usage import WRITE_TTLS, TokenUsage
from gateway.ledger import Entry

REVISION = "0008"
"""The newest of `migrations/versions`, as this program's tables are."""

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class Tables(SQLModel):
    """Base of our tables; its metadata holds nothing of anyone else's."""

    metadata = MetaData()


class LedgerRow(Tables, table=True):
    """One entry. Only ever inserted."""

    __tablename__ = "ledger"
    __table_args__ = (
        Index("ledger_team_at", "team", "at_us"), Index("ledger_model_at", "model", "at_us"),
        Index("ledger_call_id", "call_id", postgresql_ops={"call_id": "text_pattern_ops"}),
        Index(
            "ledger_parent_run", "parent_run",
            sqlite_where=text("parent_run IS NOT NULL"), postgresql_where=text("parent_run IS NOT NULL"),
        ),
        Index("ledger_missed_at", "at_us", sqlite_where=text("miss IS NOT NULL"), postgresql_where=text("miss IS NOT NULL")),
        Index(
            "ledger_held", "team", "at_us",
            sqlite_where=text("held_nanos IS NOT NULL"), postgresql_where=text("held_nanos IS NOT NULL"),
        ),
    )  # fmt: skip

    id: str = Field(primary_key=True)
    call_id: str
    attempt: int
    at_us: int = Field(sa_type=BigInteger, index=True)
    kind: str
    corrects: str | None = Field(index=True)

    team: str
    project: str | None
    key_id: str
    client: str
    session: str | None = Field(default=None)
    run: str | None = Field(index=True)
    parent_run: str | None
    subgoal: str | None
    tags: dict[str, Any] = Field(sa_type=cast(Any, Json))

    dialect: str
    stream: bool
    model: str
    upstream_model: str
    served_model: str | None
    backend: str
    provider: str
    lane: str
    served_tier: str | None
    latency_class: str
    policy_version: str
    reason: str
    decision: list[Any] = Field(sa_type=cast(Any, Json))
    receipts: list[Any] = Field(sa_type=cast(Any, Json))

    status: str
    http_status: int | None
    error: str | None
    first_token_ms: float | None
    total_ms: float
    uncached: int | None = Field(sa_type=BigInteger)
    cache_read: int | None = Field(sa_type=BigInteger)
    write_5m: int | None = Field(sa_type=BigInteger)
    write_1h: int | None = Field(sa_type=BigInteger)
    write_30m: int | None = Field(sa_type=BigInteger)
    write_12h: int | None = Field(sa_type=BigInteger)
    write_unknown: int | None = Field(sa_type=BigInteger)
    output: int | None = Field(sa_type=BigInteger)
    reasoning: int | None = Field(sa_type=BigInteger)
    other: dict[str, Any] = Field(sa_type=cast(Any, Json))
    flags: list[Any] = Field(sa_type=cast(Any, Json))
    tokens_from: str
    predicted_read_tokens: int | None = Field(sa_type=BigInteger)
    miss: dict[str, Any] | None = Field(sa_type=cast(Any, Json))

    cost_nanos: int | None = Field(sa_type=BigInteger)
    held_nanos: int | None = Field(default=None, sa_type=BigInteger)
    uncached_cost_nanos: int | None = Field(sa_type=BigInteger)
    price_rows: list[Any] = Field(sa_type=cast(Any, Json))


class KeyRow(Tables, table=True):
    """A virtual key. The secret itself is nowhere: `digest` is its HMAC."""

    __tablename__ = "keys"

    id: str = Field(primary_key=True)
    digest: str = Field(unique=True)
    team: str = Field(index=True)
    project: str | None = None
    name: str = ""
    role: str = "member"
    """`member`, `lead` or `admin`."""
    budget: dict[str, Any] | None = Field(default=None, sa_type=cast(Any, Json))
    created_us: int = Field(sa_type=BigInteger)
    expires_us: int | None = Field(default=None, sa_type=BigInteger)
    revoked_us: int | None = Field(default=None, sa_type=BigInteger)
    user_id: str | None = None
    """The person it was made for."""
    limits: dict[str, Any] | None = Field(default=None, sa_type=cast(Any, Json))
    changed_us: int = Field(default=0, sa_type=BigInteger, index=True, sa_column_kwargs={"server_default": "0"})
    """Other processes look for what is newer than what they know."""


class AuditRow(Tables, table=True):
    """Who changed what. Only ever inserted."""

    __tablename__ = "audit"

    id: str = Field(primary_key=True)
    at_us: int = Field(sa_type=BigInteger, index=True)
    actor: str
    """Key id, or `cli`."""
    action: str
    """For example `key.create`."""
    target: str
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=cast(Any, Json))


BACKTEST = "policy.backtest"
"""The action of an audit row that keeps a backtest's result."""


class SchemaRow(Tables, table=True):
    """What the releases before migrations looked at; kept so that one of them can still be started on this database."""

    __tablename__ = "schema_version"

    version: int = Field(primary_key=True)
    at_us: int = Field(sa_type=BigInteger)


def table(row: type[Tables]) -> Table:
    return cast(Table, cast(Any, row).__table__)


LEDGER, KEYS, AUDIT, SCHEMA = table(LedgerRow), table(KeyRow), table(AuditRow), table(SchemaRow)

_TOKENS = ("uncached", "cache_read", "output", "reasoning")
_WRITES = tuple((f"write_{ttl}", ttl) for ttl in WRITE_TTLS)
_JSON = ("tags", "decision", "receipts", "other", "flags", "miss", "price_rows")
_SAME = tuple(c.name for c in LEDGER.columns if c.name not in {*_TOKENS, *(name for name, _ in _WRITES), *_JSON})
"""Columns with the name and the value of a field of `Entry`."""
COLUMNS = (*_SAME, *_TOKENS, *(name for name, _ in _WRITES), *_JSON)
_NO_WRITES = (None,) * len(_WRITES)
_same, _tokens = attrgetter(*_SAME), attrgetter(*_TOKENS)


def dumps(value: object) -> str:
    return orjson.dumps(value, default=_plain).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"the ledger cannot hold a {type(value).__name__}")


def values_of(entry: Entry) -> tuple[Any, ...]:
    """An entry as the driver takes it: one value for each of `COLUMNS`, JSON as text. On the projector's path, so plain."""
    tokens, write = entry.tokens, entry.tokens.cache_write
    return (
        *_same(entry),
        *_tokens(tokens),
        *([write.get(ttl) for _, ttl in _WRITES] if write else _NO_WRITES),
        dumps(entry.tags) if entry.tags else "{}",
        dumps(entry.decision) if entry.decision else "[]",
        dumps(entry.receipts) if entry.receipts else "[]",
        dumps(tokens.other) if tokens.other else "{}",
        dumps(tokens.flags) if tokens.flags else "[]",
        None if entry.miss is None else dumps(entry.miss),
        dumps(entry.price_rows) if entry.price_rows else "[]",
    )


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Column values as the entry they came from."""
    tokens = TokenUsage(
        **{name: row[name] for name in _TOKENS},
        cache_write={ttl: row[column] for column, ttl in _WRITES if row[column] is not None},
        other=row["other"],
        flags=tuple(row["flags"]),
    )
    return Entry(
        **{name: row[name] for name in _SAME},
        tags=row["tags"],
        tokens=tokens,
        decision=tuple(row["decision"]),
        receipts=tuple(row["receipts"]),
        miss=row["miss"],
        price_rows=tuple(row["price_rows"]),
    )
