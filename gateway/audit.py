"""Who changed what: one row in the same transaction, written before the change, so that there is no change without it."""
from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import clock
from gateway.ledger.tables import AUDIT

Facts = Mapping[str, Any]


async def write(
    connection: AsyncConnection, actor: str, action: str, target: str, *, before: Facts | None = None,
    after: Facts | None = None,
) -> None:  # fmt: skip
    """`actor` is the id of a key or a person, or `start`; `before` and `after` what the change is about, None: not there."""
    await note(connection, actor, action, target, {"before": before, "after": after})


async def note(connection: AsyncConnection, actor: str, action: str, target: str, detail: Facts) -> None:
    """One row about something that has no before and after."""
    row = {"actor": actor, "action": action, "target": target, "detail": dict(detail)}
    await connection.execute(insert(AUDIT).values(id=secrets.token_hex(12), at_us=clock.now_us(), **row))
