"""What has been booked on attempts, corrections included: what budgets are settled and bills compared by."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import case, func, literal_column, or_, select

from gateway.ledger import Entry
from gateway.ledger.measures import IS_ATTEMPT, UNPRICED
from gateway.ledger.reader import Reader
from gateway.ledger.slices import MAX_ROWS, Slice, dimensions
from gateway.ledger.tables import LEDGER, entry_of

C = LEDGER.c
_IDS = 400
"""Ids in one list of a statement."""
_HELD = func.sum(C.held_nanos).label("nanos")
_UNKNOWN = (C.held_nanos.is_not(None), UNPRICED)


def spent(reader: Reader, part: Slice, without: Sequence[str]) -> int:
    """Nano-dollars of a slice's entries, what was held where a cost is not known; attempts named in `without`, and corrections
    of them, are left out."""
    query = part.apply(select(func.sum(C.cost_nanos).label("nanos")))
    held = part.apply(select(_HELD)).where(*_UNKNOWN)
    for some in _batches(without):
        held = held.where(C.id.not_in(some))
        query = query.where(C.id.not_in(some), or_(C.corrects.is_(None), C.corrects.not_in(some)))
    return sum(int(reader.read(sums)[0][0]["nanos"] or 0) for sums in (query, held))


def held_for_unknown(reader: Reader, part: Slice, scope: str | None) -> dict[str | None, int]:
    """Nano-dollars that budgets count for a slice's attempts of unknown cost, by a dimension; None: all as one."""
    split = () if scope is None else dimensions((scope,), part)
    query = part.apply(select(*[d.sql for d in split], _HELD)).where(*_UNKNOWN)
    found = reader.read(query.group_by(*[literal_column(d.sql.name) for d in split]).limit(MAX_ROWS))[0]
    return {split[0].text(row[split[0].sql.name]) if split else None: int(row["nanos"] or 0) for row in found}


def spent_each(reader: Reader, part: Slice) -> dict[str, int]:
    """Nano-dollars of each attempt of a slice; what was held where a cost is not known."""
    id, held = func.coalesce(C.corrects, C.id).label("attempt_id"), case((IS_ATTEMPT, C.held_nanos))
    query = part.apply(select(id, func.coalesce(func.sum(C.cost_nanos), func.max(held)).label("nanos"))).group_by(id)
    return {row["attempt_id"]: int(row["nanos"]) for row in reader.read(query)[0] if row["nanos"] is not None}


def costs(reader: Reader, attempt_ids: Sequence[str]) -> dict[str, int | None]:
    """Nano-dollars of those attempts that are booked; None: not known."""
    found: dict[str, int | None] = {}
    for some in _batches(attempt_ids):
        query = select(C.id, C.corrects, C.cost_nanos).where(or_(C.id.in_(some), C.corrects.in_(some)))
        for row in reader.read(query)[0]:
            id, cost = row["corrects"] or row["id"], row["cost_nanos"]
            earlier = found.get(id)
            found[id] = cost if earlier is None else earlier if cost is None else earlier + cost
    return found


def corrections(reader: Reader, ids: Sequence[str]) -> dict[str, list[Entry]]:
    """Attempt -> what was booked later to correct it, oldest first; attempts without any are left out."""
    found: dict[str, list[Entry]] = {}
    for row in reader.read(select(LEDGER).where(C.corrects.in_(ids)).order_by(C.id))[0] if ids else ():
        found.setdefault(row["corrects"], []).append(entry_of(row))
    return found


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _IDS] for start in range(0, len(ids), _IDS))
