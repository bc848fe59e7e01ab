"""Tables of what is watched: how each gateway is, and which alerts were raised."""
from __future__ import annotations

from typing import Any, cast

from sqlalchemy import BigInteger
from sqlmodel import Field

from gateway.ledger.tables import Json, Tables, table


class StatusRow(Tables, table=True):
    """How one gateway is, as it said last."""

    __tablename__ = "gateway_status"

    gateway: str = Field(primary_key=True)
    at_us: int = Field(sa_type=BigInteger)
    detail: dict[str, Any] = Field(sa_type=cast(Any, Json))


class AlertRow(Tables, table=True):
    """An alert that was raised. Its id says what it is about, so that nothing is told twice."""

    __tablename__ = "alerts"

    id: str = Field(primary_key=True)
    at_us: int = Field(sa_type=BigInteger, index=True)
    kind: str
    team: str = Field(index=True)
    detail: dict[str, Any] = Field(sa_type=cast(Any, Json))


STATUS, ALERTS = table(StatusRow), table(AlertRow)
