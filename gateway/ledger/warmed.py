"""Calls of the gateway's own that keep prompts stored, or have them stored ahead: what they cost, and what came of it.

One was of use if within the hour another call of the team read as much, of that model's cache at that backend (where a
conversation was kept warm: a call of that conversation). What caching saved those first calls is what they are credited with,
once where several had kept the same for one call.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select

from gateway.core.money import usd
from gateway.ledger.days import HOUR_US
from gateway.ledger.measures import Row
from gateway.ledger.slices import Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
KEPT, AHEAD = NAMES = ("keep_warm", "pre_warm")
MOST = 500
"""Calls of which it is looked up what came of them, the latest."""
_SHARE = 0.9
"""Of the tokens that have to be read: how many there are is counted a little differently where more follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Of one kind. `looked`: calls of which it is known whether they were of `use`; `saved` is of those, nano-dollars."""

    kind: str
    calls: int
    nanos: int | None
    looked: int
    use: int
    saved: int

    def json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "calls": self.calls, "cost_usd": usd(self.nanos), "looked": self.looked, "of_use": self.use,
            "saved_usd": usd(self.saved),
        }  # fmt: skip


def own(part: Slice) -> Slice:
    """The part of a slice that is the gateway's own calls."""
    return replace(part, where={**part.where, "client": NAMES})


def query(part: Slice, most: int, among: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """The latest of those calls, so many at most, with the first call that read the same and what that saved; `among`: where to
    look for them."""
    read = func.coalesce(C.cache_read, 0) + func.coalesce(C.write_5m, 0) + func.coalesce(C.write_1h, 0)
    columns = [C.client, C.team, C.backend, C.upstream_model, C.session, C.at_us, read.label("tokens")]
    some = own(part).apply(select(*columns)).where(C.kind == "attempt", C.status == "ok", among)
    mine = some.order_by(C.at_us.desc()).limit(most).subquery()
    then = LEDGER.alias().c
    first = select(then.id).where(
        then.team == mine.c.team, then.at_us > mine.c.at_us, then.at_us <= mine.c.at_us + HOUR_US, then.kind == "attempt",
        then.backend == mine.c.backend, then.upstream_model == mine.c.upstream_model, then.client.not_in(NAMES),
        then.cache_read >= _SHARE * mine.c.tokens, then.cost_nanos.is_not(None), then.uncached_cost_nanos.is_not(None),
        or_(mine.c.client == AHEAD, then.session == mine.c.session),
    ).order_by(then.at_us).limit(1).correlate(mine).scalar_subquery()  # fmt: skip
    found, reader = select(mine.c.client, first.label("reader")).subquery(), LEDGER.alias()
    saved = (reader.c.uncached_cost_nanos - reader.c.cost_nanos).label("saved")
    return select(found.c.client, found.c.reader, saved).outerjoin_from(found, reader, reader.c.id == found.c.reader)


def warmed(sums: Sequence[Row], rows: Iterable[Mapping[str, Any]]) -> list[Warmed]:
    """`sums` by client, and the rows of `query`."""
    readers: dict[str, list[tuple[str | None, int]]] = {}
    for row in rows:
        readers.setdefault(row["client"], []).append((row["reader"], int(row["saved"] or 0)))
    return [
        Warmed(
            kind=kind, calls=one.calls, nanos=one.cost_nanos, looked=len(found),
            use=len([reader for reader, _ in found if reader]), saved=sum(dict(found).values()),
        )
        for one in sorted(sums, key=attrgetter("key"))
        for kind in [str(one.key[0])]
        for found in [readers.get(kind, [])]
    ]  # fmt: skip
