"""One agent's run: its sums by subgoal with the verdicts on them, and the calls of it and of the runs that it started.

`within` is the team and the project of who asks: others' calls in a run of the same name are not told.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from gateway.ledger import Entry
from gateway.ledger.measures import IS_ATTEMPT, Sums
from gateway.ledger.reader import Reader
from gateway.ledger.slices import Slice
from gateway.ledger.tables import LEDGER, entry_of
from gateway.ledger.verdicts import verdict_json

Json = dict[str, Any]
C = LEDGER.c
DEPTH, MOST_CALLS = 5, 500
"""So deep runs may start runs; calls that a timeline shows."""


def entries(reader: Reader, run_id: str, within: Mapping[str, str], limit: int) -> list[Entry]:
    """Of the run and of the runs under it, oldest first."""
    wanted, query = [run_id], select(C.run).distinct()
    for _ in range(DEPTH):
        rows = reader.read(query.where(C.parent_run.in_(wanted), C.run.not_in(wanted)))[0]
        if not rows:
            break
        wanted += [row["run"] for row in rows]
    found = Slice(where=within).among(select(LEDGER)).where(C.run.in_(wanted), IS_ATTEMPT)
    return [entry_of(row) for row in reader.read(found.order_by(C.at_us).limit(limit))[0]]


def verdicts(reader: Reader, run_id: str, team: str | None) -> dict[str, Json]:
    """Subgoal -> the last verdict on it."""
    query = select(LEDGER).where(C.run == run_id, C.kind == "verdict").order_by(C.at_us, C.id)
    found = [entry_of(row) for row in reader.read(query)[0]]
    return {e.subgoal or "": verdict_json(e) for e in found if team in (None, e.team)}


def summary(run_id: str, sums: Sums, latest: list[Json], judged: Mapping[str, Json]) -> Json:
    """`sums` are by subgoal; verdicts on subgoals that no call names stand apart."""
    subgoals = [
        {**row.json(("subgoal",)), "verdict": judged.get(row.key[0] or "")} for row in sums.rows if row.key != (None,)
    ]
    named = {row.key[0] or "" for row in sums.rows}
    return {
        "id": run_id, "team": latest[0]["team"], **sums.total.json(), "subgoals": subgoals,
        "other_verdicts": {name: said for name, said in judged.items() if name not in named}, "latest_calls": latest,
    }  # fmt: skip
