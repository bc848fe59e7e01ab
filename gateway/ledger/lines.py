"""The ledger as a provider's bill would have it: sums by day, backend, model, tier and price rows.

Each attempt counts with all its corrections, under the rows of the last one, so a re-rated attempt stands where it now
belongs. What an attempt took and what was only estimated are lines of their own.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, String, and_, case, cast, func, literal_column, or_, select

from gateway.core.usage import WRITE_TTLS
from gateway.ledger import days
from gateway.ledger.slices import Slice, dimensions
from gateway.ledger.tables import LEDGER

C = LEDGER.c
COLUMNS = ("uncached", "cache_read", *(f"write_{ttl}" for ttl in WRITE_TTLS), "output")
_SUMMED = (*COLUMNS, "cost_nanos")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    day: str
    backend: str
    lane: str
    model: str
    """As the provider named it, else as it was asked for."""
    tier: str | None
    rows: tuple[str, ...]
    estimated: bool
    """Tokens are ours, wholly or in part: the provider never told them."""
    attempts: int
    unpriced: int
    tokens: Mapping[str, int]
    cost_nanos: int


def query(part: Slice) -> Select[*tuple[Any, ...]]:
    """One row a line, columns as `line` reads them; `part` holds a provider and a range."""
    later = LEDGER.alias("later")
    sums = [func.sum(later.c[name]).label(name) for name in _SUMMED]
    changed = (
        select(later.c.corrects, func.max(later.c.id).label("last"), *sums)
        .where(later.c.corrects.is_not(None)).group_by(later.c.corrects).subquery("changed")
    )  # fmt: skip
    last = LEDGER.alias("last")
    rows = case(
        (and_(last.c.id.is_not(None), cast(last.c.price_rows, String) != "[]"), cast(last.c.price_rows, String)),
        else_=cast(C.price_rows, String),
    )
    split: dict[str, ColumnElement[Any]] = {
        "day": dimensions(("day",), part)[0].sql,
        "backend": C.backend,
        "lane": C.lane,
        "model": func.coalesce(last.c.served_model, C.served_model, C.upstream_model),
        "tier": func.coalesce(last.c.served_tier, C.served_tier),
        "rows": rows,
        "estimated": case((C.tokens_from.in_(("estimate", "mixed")), 1), else_=0),
    }
    total = [
        func.sum(func.coalesce(C[name], 0) + func.coalesce(changed.c[name], 0)).label(f"sum_{name}") for name in _SUMMED
    ]
    unknown = case((or_(C.cost_nanos.is_not(None), changed.c.cost_nanos.is_not(None)), 0), else_=1)
    labels = [column.label(f"by_{name}") for name, column in split.items()]
    asked = select(*labels, *total, func.count().label("attempts"), func.sum(unknown).label("unpriced"))
    joined = LEDGER.outerjoin(changed, changed.c.corrects == C.id).outerjoin(last, last.c.id == changed.c.last)
    took = or_(*(func.coalesce(C[name], changed.c[name]).is_not(None) for name in COLUMNS))
    found = part.apply(asked.select_from(joined).where(C.kind == "attempt", took))
    return found.group_by(*[literal_column(label.name) for label in labels])


def line(row: Mapping[str, Any]) -> LedgerLine:
    return LedgerLine(
        day=days.day_name(int(row["by_day"])), backend=row["by_backend"], lane=row["by_lane"], model=row["by_model"],
        tier=row["by_tier"], rows=tuple(orjson.loads(row["by_rows"])), estimated=bool(row["by_estimated"]),
        attempts=int(row["attempts"]), unpriced=int(row["unpriced"]), cost_nanos=int(row["sum_cost_nanos"]),
        tokens={name: int(row[f"sum_{name}"]) for name in COLUMNS},
    )  # fmt: skip
