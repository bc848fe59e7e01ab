"""Read-only sums over the ledger: what `tollway report`, `/tollway/usage` and the dashboard show, each figure from one place.

    reports = connect("sqlite:///tollway.db")
    reports.spend(("day", "team"), Slice(since_us=..., until_us=..., tz="Europe/Berlin", where={"model": "gpt-5.5"}))

All methods are plain functions; from an event loop call them with `asyncio.to_thread`. They raise `LedgerUnavailable` (database
missing, locked, older, away), `BadQuery` (a word they do not know) and `UnknownZone`.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from sqlalchemy import Select, func, literal_column, or_, select, true

from gateway.core.money import usd
from gateway.ledger import Entry, admitted, booked, calls, dearest, latency, latest, lines, misses, replay, rolled, runs
from gateway.ledger import savings as held_out
from gateway.ledger import warmed as warming
from gateway.ledger.admitted import Person
from gateway.ledger.days import HOUR_US, UnknownZone, Window, day_range, instant, micros, window_start
from gateway.ledger.latency import Bar, Bins, Late, Of, Quantiles, Waits
from gateway.ledger.lines import LedgerLine
from gateway.ledger.measures import IS_ATTEMPT, MEASURES, SOURCE, Row, Sums
from gateway.ledger.misses import Cause
from gateway.ledger.reader import LedgerUnavailable, Moment, Reader, reader
from gateway.ledger.rollup_sql import LATENCY_DIMS
from gateway.ledger.rollup_tables import STATE
from gateway.ledger.runs import MOST_CALLS
from gateway.ledger.savings import Saving
from gateway.ledger.slices import DIMENSIONS, MAX_ROWS, TIMES, BadQuery, Slice, begins, dimensions
from gateway.ledger.tables import AUDIT, BACKTEST, LEDGER, entry_of
from gateway.ledger.warmed import Warmed
from gateway.ledger.watch_tables import ALERTS, STATUS

__all__ = [
    "DIMENSIONS", "BadQuery", "Bar", "Extent", "Late", "LedgerUnavailable", "Of", "Person", "Quantiles", "Reports",
    "Row", "Slice", "Sums", "UnknownZone", "Waits", "Window", "connect", "day_range", "instant", "micros",
    "window_start",
]  # fmt: skip

Json = dict[str, Any]
C = LEDGER.c


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is."""

    entries: int
    first_us: int | None
    last_us: int | None


def connect(url: str) -> Reports:
    """Nothing is opened before the first report."""
    return Reports(reader(url))


class Reports:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def close(self) -> None:
        self._reader.close()

    # Sums

    def spend(self, by: Sequence[str] = (), part: Slice | None = None) -> Sums:
        """Calls, attempts, tokens by class, cost, what caching saved, predicted against real cache reads, retries."""
        part = self._tight(by, part or Slice())
        split = dimensions(by, part)
        if found := rolled.plan(by, part):
            told = self._reader.read_at(lambda now: rolled.sums_queries(split, part, found, now))
        else:
            figures = [measure.label(name) for name, measure in MEASURES.items()]
            total = part.apply(select(*figures).select_from(SOURCE))
            query = part.apply(select(*[d.sql for d in split], *figures).select_from(SOURCE))
            grouped = query.group_by(*[literal_column(d.sql.name) for d in split]).limit(MAX_ROWS)
            told = self._reader.read(total, *([grouped] if split else []))
        totals, rows = told[0], told[1] if split else []
        found_rows = [Row.of(tuple(d.text(row[d.sql.name]) for d in split), row) for row in rows]
        return Sums(tuple(by), tuple(_ordered(found_rows, by)), Row.of((), totals[0]))

    cache = routing = spend
    """The same sums: each `Row` has the cache's figures and the routing's; the names say what a caller is after."""

    def misses(self, part: Slice | None = None) -> list[Cause]:
        """What cache misses cost, by cause; the dearest first."""
        return misses.causes(self._reader.read(misses.query(part or Slice()).limit(MAX_ROWS))[0])

    def latest_misses(self, part: Slice, most: int) -> Slice:
        """A slice that begins later, where it has more misses than that: so many of the latest are in it."""
        found = self._reader.read(misses.nth_latest_query(part, most))[0]
        return replace(part, since_us=found[0]["at_us"]) if found else part

    def savings(self, part: Slice | None = None, most: int = held_out.MAX_ENTRIES) -> list[Saving]:
        """What each lever saves against the conversations held out from it, by the latest entries, so many at most."""
        part = part or Slice()
        found = latest.spans(self._reader, part, most, held_out.LOOKED * most)
        return held_out.savings(self._reader.read(held_out.query(part, most, found.where))[0])

    def warmed(self, part: Slice | None = None) -> list[Warmed]:
        """The gateway's own calls that keep prompts stored or write them ahead, what they cost and what came of it."""
        part = part or Slice()
        if "client" in part.where:
            return []
        own = warming.own(part)
        sums = self.spend(("client",), own).rows
        found = latest.spans(self._reader, own, warming.MOST)
        return warming.warmed(sums, self._reader.read(warming.query(part, warming.MOST, found.where))[0]) if sums else []

    def latency(
        self, by: Sequence[str] = ("lane", "class"), part: Slice | None = None, of: Of = "first_token"
    ) -> list[Quantiles]:
        """Exact over few attempts, from bins over many: see `latency.py`."""
        return self.waits((tuple(by),), part, of).by[tuple(by)]

    def waits(
        self, splits: Sequence[tuple[str, ...]], part: Slice | None = None, of: Of = "first_token",
        bars: tuple[str, ...] | None = None,
    ) -> Waits:  # fmt: skip
        """`latency` by each of several splits, `histogram` by `bars`. Over many attempts all are added up from one look at the
        bins, by all that any of them splits by."""
        part = self._tight([name for by in splits for name in by], part or Slice())
        wanted = [*splits, *([] if bars is None else [bars])]
        finest = tuple(sorted({name for by in wanted for name in by}, key=lambda name: name not in TIMES))
        if rolled.plan(finest, part, LATENCY_DIMS) and self._count(part) > latency.EXACT_UP_TO:
            bins = self._bins(finest, part, of)
            told = {by: latency.merged(bins, finest, by) for by in wanted}
            return Waits({by: latency.quantiles_of(told[by]) for by in splits}, latency.bars(told[bars]) if bars else [])
        found = {}
        for by in splits:
            split = dimensions(by, part)
            found[by] = latency.quantiles(split, self._reader.read(latency.quantiles_query(split, part, of))[0])
        return Waits(found, [] if bars is None else self.histogram(bars, part, of))

    def histogram(self, by: Sequence[str] = ("lane",), part: Slice | None = None, of: Of = "first_token") -> list[Bar]:
        return latency.bars(self._bins(by, self._tight(by, part or Slice()), of))

    def late(self, deadlines: Mapping[tuple[str, str], float], part: Slice | None = None) -> list[Late]:
        """First tokens after the deadline of (team, class), in milliseconds; from bins."""
        return latency.late(self._bins(("team", "class"), part or Slice(), "first_token"), deadlines)

    def _bins(self, by: Sequence[str], part: Slice, of: Of) -> Bins:
        split = dimensions(by, part)
        found = rolled.plan(by, part, LATENCY_DIMS)

        def counted(now: Moment) -> list[Select[Any]]:
            query = rolled.bins_query(split, part, of, found, now) if found else latency.histogram_query(split, part, of)
            return [latency.packed(split, query, now.dialect)]

        return latency.bins(split, self._reader.read_at(counted)[0])

    def _count(self, part: Slice) -> int:
        if found := rolled.plan((), part):
            ((row,),) = self._reader.read_at(lambda now: [rolled.entries_query(part, found, now)])
        else:
            ((row,),) = self._reader.read(part.apply(select(func.count().label("n")).select_from(LEDGER)))
        return int(row["n"])

    def query(self, query: Mapping[str, Any], team: str | None = None) -> Json:
        """`{"name": "spend", "group_by", "from", "to", "timezone", "team"}`, both days included. `team` is the scope of who
        asks, None for all: another team's figures are not found."""
        if query.get("name") != "spend":
            raise BadQuery(f"{query.get('name')!r} is no query; there is: spend")
        tz, group = query.get("timezone", "UTC"), query.get("group_by", "none")
        since, until = day_range(date.fromisoformat(query["from"]), date.fromisoformat(query["to"]), tz)
        part = Slice(since_us=since, until_us=until, tz=tz)
        if wanted := query.get("team"):
            part = part.only(team=wanted if team in (None, wanted) else "")
        elif team is not None:
            part = part.only(team=team)
        sums = self.spend(() if group == "none" else (group,), part)
        rows = sorted(sums.rows, key=lambda row: row.key[0] or "")
        return {"rows": [{"key": row.key[0], **_brief(row)} for row in rows], "total": _brief(sums.total)}

    def spent(self, part: Slice, without: Sequence[str] = ()) -> int:
        """Nano-dollars of a slice's entries, what was held where a cost is not known; attempts named in `without`, and their
        corrections, are left out."""
        return booked.spent(self._reader, part, without)

    def held_for_unknown(self, part: Slice, scope: str | None = None) -> dict[str | None, int]:
        """Nano-dollars that budgets count for a slice's attempts of unknown cost, by the values of a dimension."""
        return booked.held_for_unknown(self._reader, part, scope)

    def spent_each(self, part: Slice) -> dict[str, int]:
        """Nano-dollars of each attempt of a slice, corrections included; what was held where a cost is not known."""
        return booked.spent_each(self._reader, part)

    def costs(self, attempt_ids: Sequence[str]) -> dict[str, int | None]:
        """Nano-dollars of those attempts that are booked, corrections included; None: not known."""
        return booked.costs(self._reader, attempt_ids)

    def corrections(self, ids: Sequence[str]) -> dict[str, list[Entry]]:
        """Attempt -> what was booked later to correct it, oldest first; attempts without any are left out."""
        return booked.corrections(self._reader, ids)

    # Single things

    def call(self, call_id: str, team: str | None = None, project: str | None = None) -> Json | None:
        """One call; None if there is none, or it is another team's or project's."""
        entries = self._entries_of([call_id], Slice(where=_within(team, project)))
        return calls.call_json(entries) if entries else None

    def call_list(self, part: Slice | None = None, search: str = "", limit: int = 100) -> list[Json]:
        """The latest calls, newest first. `search`: start of a call id, or a run, key, model or status."""
        return self.latest_calls(part, search, limit)[0]

    def latest_calls(self, part: Slice | None = None, search: str = "", limit: int = 100) -> tuple[list[Json], int | None]:
        """The same, and how far back was looked in a ledger of very many entries, None: as far as the slice goes."""
        part, found = part or Slice(), latest.Spans(true())
        query = select(C.call_id, C.at_us).where(IS_ATTEMPT)
        name = self._known(search, part) if search else None
        if name:
            part = part.only(**{name: search})
        elif search:
            query = query.where(or_(begins(C.call_id, search, self._reader.dialect), C.run == search))
        if name or not search:
            found = latest.spans(self._reader, part, 4 * limit)
        query = part.apply(query.where(found.where)).order_by(C.at_us.desc()).limit(4 * limit)
        ids = list(dict.fromkeys(row["call_id"] for row in self._reader.read(query)[0]))[:limit]
        return [calls.summary(entries) for entries in calls.by_call(self._entries_of(ids, Slice()), ids)], found.since_us

    def _known(self, search: str, part: Slice) -> str | None:
        """The dimension that the roll-up knows this value of."""
        names = (name for name in ("key", "model", "status") if rolled.plan((name,), part))
        return next((name for name in names if search in self.values(name, part)), None)

    def run(self, run_id: str, team: str | None = None, project: str | None = None) -> Json | None:
        """One agent's run: sums, sub-goals and its latest calls, of a team and a project; None: there is none."""
        part = Slice(where={"run": run_id, **_within(team, project)})
        sums = self.spend(("subgoal",), part)
        if not sums.total.attempts:
            return None
        return runs.summary(run_id, sums, self.call_list(part), self.verdicts(run_id, team))

    def verdicts(self, run_id: str, team: str | None = None) -> dict[str, Json]:
        """Subgoal -> the last verdict on it."""
        return runs.verdicts(self._reader, run_id, team)

    def runs(self, part: Slice | None = None, most: int = 200) -> list[Row]:
        """Sums of the dearest runs."""
        return self.dearest("run", part, most)

    def dearest(self, name: str, part: Slice | None = None, most: int = 200) -> list[Row]:
        """Sums of the dearest values of one dimension; of a run or a tag, entries without one are in none."""
        part = part or Slice()
        (split,) = dimensions((name,), part)
        found = rolled.plan((name,), part)
        if found and rolled.sparse(name) and name not in part.where:
            return dearest.rows(self._reader, split, part, found, most)
        rows = self.spend((name,), part).rows
        return [row for row in rows if row.key[0] is not None or not rolled.sparse(name)][:most]

    def run_calls(
        self, run_id: str, team: str | None = None, project: str | None = None, limit: int = MOST_CALLS
    ) -> list[Json]:
        """The calls of a run and of the runs under it, oldest first: what a timeline is drawn from."""
        return [calls.timed(entry) for entry in runs.entries(self._reader, run_id, _within(team, project), limit)]

    def run_trace(self, run_id: str, team: str | None = None, project: str | None = None) -> Json | None:
        """The same calls as a trace file has them, to be replayed under other policies; None: there is none."""
        found = list(replay.lines(runs.entries(self._reader, run_id, _within(team, project), MAX_ROWS)))
        return {"id": run_id, "trace": found} if found else None

    def decisions(self, part: Slice | None = None, limit: int = 300) -> list[Json]:
        """The latest attempts with what every lane was expected to cost and take: `id, lane, decision`."""
        part = part or Slice()
        found = latest.spans(self._reader, part, 2 * limit)
        columns = C.call_id.label("id"), C.lane, C.decision
        query = part.apply(select(*columns).where(IS_ATTEMPT, C.attempt == 1, found.where)).order_by(C.at_us.desc())
        return [row for row in self._reader.read(query.limit(limit))[0] if row["decision"]]

    def status(self) -> list[Json]:
        """How each gateway was when it last said so, the latest first: `gateway, at_us` and its `detail`."""
        rows = self._reader.read(select(STATUS).order_by(STATUS.c.at_us.desc()).limit(50))[0]
        return [{"gateway": row["gateway"], "at_us": row["at_us"], **row["detail"]} for row in rows]

    def alerts(self, team: str | None = None, limit: int = 50) -> list[Json]:
        """What was told, the latest first."""
        query = select(ALERTS.c.detail).order_by(ALERTS.c.at_us.desc()).limit(limit)
        rows = self._reader.read(query if team is None else query.where(ALERTS.c.team == team))[0]
        return [row["detail"] for row in rows]

    def backtests(self, limit: int = 20) -> list[Json]:
        """Results of `tollway policy backtest --keep`, the latest first: `at_us, actor, title, result`."""
        query = select(AUDIT).where(AUDIT.c.action == BACKTEST).order_by(AUDIT.c.at_us.desc()).limit(limit)
        rows = self._reader.read(query)[0]
        return [{"at_us": row["at_us"], "actor": row["actor"], "title": row["target"], **row["detail"]} for row in rows]

    def rolled(self) -> tuple[int, int]:
        """Entries that the roll-ups hold, and when they were last added to, in microseconds."""
        rows = self._reader.read(select(STATE.c.entries, STATE.c.rolled_us))[0]
        return (rows[0]["entries"], rows[0]["rolled_us"]) if rows else (0, 0)

    def entries(self, part: Slice | None = None, limit: int = MAX_ROWS, after: tuple[int, str] = (0, "")) -> list[Entry]:
        """Entries as they were appended, in order of time; `after`: the last one's `(at_us, id)`, to go on from there."""
        at_us, id = after
        query = (part or Slice()).apply(select(LEDGER)).where(or_(C.at_us > at_us, (C.at_us == at_us) & (C.id > id)))
        return [entry_of(row) for row in self._reader.read(query.order_by(C.at_us, C.id).limit(limit))[0]]

    def lines(self, provider: str, part: Slice) -> list[LedgerLine]:
        """What a provider served, as its bill would have it."""
        return [lines.line(row) for row in self._reader.read(lines.query(part.only(provider=provider)))[0]]

    # What there is

    def extent(self, part: Slice | None = None) -> Extent:
        part = part or Slice()
        ends = [part.apply(select(end(C.at_us).label("at"))) for end in (func.min, func.max)]
        (first,), (last,) = self._reader.read(*ends)
        return Extent(self._count(part), first["at"], last["at"])

    def values(self, dimension: str, part: Slice | None = None) -> list[str]:
        """The values that occur, in order: what a filter offers."""
        part = part or Slice()
        (split,) = dimensions((dimension,), part)
        if found := rolled.plan((dimension,), part):
            (rows,) = self._reader.read_at(lambda now: [rolled.values_query(split, part, found, now)])
        else:
            (rows,) = self._reader.read(part.apply(select(split.sql).distinct()).limit(MAX_ROWS))
        return sorted(text for row in rows if (text := split.text(row[split.sql.name])) is not None)

    def key_by_digest(self, digest: str, now_us: int) -> Json | None:
        """A key that is good now, by its secret's HMAC: `id, team, project, name, role`."""
        return admitted.key_by_digest(self._reader, digest, now_us)

    def person(self, issuer: str, subject: str) -> Person | None:
        """Somebody who signs in and is not disabled, and the teams they are in."""
        return admitted.person(self._reader, issuer, subject)

    def _entries_of(self, ids: Sequence[str], part: Slice) -> list[Entry]:
        query = part.among(select(LEDGER)).where(C.call_id.in_(ids))
        rows = self._reader.read(query.order_by(C.at_us, C.attempt, C.id))[0]
        return [entry_of(row) for row in rows]

    def _tight(self, by: Sequence[str], part: Slice) -> Slice:
        """Open ends closed where a split by time has to know the zone's clock changes in between."""
        if not set(by) & set(TIMES):
            return part
        first, last = self._reader.read(*[select(end(C.at_us).label("at")) for end in (func.min, func.max)])
        since, until = first[0]["at"] or 0, (last[0]["at"] or 0) + 1
        whole = -(-until // HOUR_US) * HOUR_US     # so that the roll-up has it
        return replace(part, since_us=max(part.since_us, since), until_us=min(part.until_us, whole))


def _ordered(rows: list[Row], by: Sequence[str]) -> list[Row]:
    rows = sorted(rows, key=lambda row: tuple(text or "" for text in row.key))
    return rows if by and by[0] in TIMES else sorted(rows, key=lambda row: -(row.cost_nanos or 0))


def _within(team: str | None, project: str | None) -> dict[str, str]:
    return {name: value for name, value in (("team", team), ("project", project)) if value is not None}


def _brief(row: Row) -> Json:
    return {"cost_usd": usd(row.cost_nanos or 0), "requests": row.calls, "attempts": row.attempts}
