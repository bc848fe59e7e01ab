"""Reads sums from the roll-ups where they can tell, and the rest from the ledger, so that together they are exact.

A slice is cut in three: whole hours come from the roll-up; the pieces of hours at its two ends come from the ledger, and so
does whatever came since the last time the roll-up was added to. All three are disjoint and read in one transaction.

In zones of half and quarter hours a day or an hour begins within an hour of the roll-up. That counts where its end belongs; its
beginning is read from the ledger, added where it belongs itself, and taken from there.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    and_,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)

from gateway.ledger import days
from gateway.ledger.days import DAY_US, HOUR_US
from gateway.ledger.latency import BIN, SPANS, Of
from gateway.ledger.measures import IS_ATTEMPT, SOURCE, sums_of
from gateway.ledger.reader import Moment
from gateway.ledger.rollup_sql import DIMS, VARYING, entry_sums, tag_dim
from gateway.ledger.rollup_tables import ALL_TEAMS, LATENCY, NONE, PLACES, ROLLUP, SUMS, VALUES, of_project, seq, within
from gateway.ledger.slices import MAX_ROWS, TIMES, Dimension, Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
MOST_CUT_HOURS = 400
"""A range whose days, or hours, cut more hours than this is read from the ledger: years of a half-hour zone."""
_VARYING = frozenset().union(*VARYING)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the roll-up answers: which of its dimensions, and which pieces of time it leaves to the ledger."""

    dim: tuple[str, ...]
    first: int
    """Whole hours from this one on, counted from the epoch, up to `last`, which is not in."""
    last: int
    cut: tuple[tuple[int, int], ...]
    """Beginnings of hours between them that may belong to another day or hour of the zone than the hour's end; microseconds."""
    rest: tuple[str, ...]
    """The dimension that also has the entries without a run or tag that `dim` is about."""
    projects: tuple[str, ...]
    """Those whose own rows tell it; empty: not of projects."""

    def dims(self, name: str) -> list[str]:
        return [of_project(name, project) for project in self.projects] or [name]


def plan(by: Sequence[str], part: Slice, dims: Sequence[tuple[str, ...]] = DIMS) -> Plan | None:
    """None: the roll-up cannot tell."""
    projects = () if "project" in by else _projects(part)
    apart = ("team", "project", *TIMES) if projects else ("team", *TIMES)
    need = {name for name in (*by, *part.where) if name not in apart}
    dim = _dimension(need, dims)
    times = set(by) & set(TIMES)
    without = any(sparse(name) and _has_none(wanted) for name, wanted in part.where.items())
    if dim is None or without or len(times) > 1 or (times and by[0] not in TIMES) or frozenset(need & _VARYING) not in VARYING:
        return None
    cut = _cut(part, DAY_US if "day" in times else HOUR_US) if times else ()
    if cut is None:
        return None
    first, last = -(-part.since_us // HOUR_US), part.until_us // HOUR_US
    rest = _dimension({name for name in need if not sparse(name)}, dims)
    assert rest is not None, "what splits a run or a tag splits all entries"
    return Plan(dim, first, last, tuple(piece for piece in cut if first <= piece[0] // HOUR_US < last), rest, projects)


def _projects(part: Slice) -> tuple[str, ...]:
    """Those that a slice is narrowed to, where it is to nothing else of that kind."""
    wanted = part.where.get("project", ())
    if wanted is None or _has_none(wanted):
        return ()
    return (wanted,) if isinstance(wanted, str) else tuple(value for value in wanted if value is not None)


def _has_none(wanted: str | Sequence[str | None] | None) -> bool:
    return wanted is None or (not isinstance(wanted, str) and None in wanted)


def sparse(name: str) -> bool:
    """Values that most entries lack: the roll-up has only those that have one, and each team by itself."""
    return name == "run" or name.startswith("tag:")


def _dimension(need: set[str], dims: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The narrowest dimension that has all that is asked for."""
    tags = [tag_dim(name) for name in sorted(need) if name.startswith("tag:")] if () in dims else []
    fitting = [dim for dim in (*dims, *tags) if need <= set(dim)]
    return min(fitting, key=len, default=None)


def _cut(part: Slice, unit_us: int) -> tuple[tuple[int, int], ...] | None:
    """Of each hour in which a day or an hour of the zone begins, or its clocks change, what comes before; None: too many."""
    since_us, until_us = part.clock_bounds
    spans = days.changes(part.tz, since_us, until_us)
    if all(offset % HOUR_US == 0 for _, offset in spans):
        return ()
    if until_us - since_us > MOST_CUT_HOURS * unit_us:
        return None
    ends = [at for at, _ in spans[1:]]
    for (at, offset), end in zip(spans, [*ends, until_us], strict=True):
        ends.extend(range(at + -(at + offset) % unit_us, end, unit_us))
    last = {at // HOUR_US: at for at in sorted(ends) if at % HOUR_US}
    return tuple((hour * HOUR_US, at) for hour, at in last.items())


# sums


def sums_queries(by: Sequence[Dimension], part: Slice, found: Plan, now: Moment) -> list[Select[Any]]:
    """The total, and where there is a split the rows by it, as `Row.of` reads them. The total has a plan of its own: it
    needs fewer rows of the roll-up, and no hour is cut for it."""
    whole = plan((), part)
    assert whole is not None, "what can be split can be summed"
    total = _summed((), part, whole, now)
    if not by:
        return [total]
    rows = _summed(by, part, found, now)
    if not any(d.name in TIMES for d in by):        # of more than can be told, the dearest
        rows = rows.order_by(func.coalesce(rows.selected_columns.cost_nanos, 0).desc())
    return [total, rows.limit(MAX_ROWS)]


def _summed(by: Sequence[Dimension], part: Slice, found: Plan, now: Moment) -> Select[Any]:
    counted = VARYING[frozenset({*(d.name for d in by), *part.where}) & _VARYING]
    names = [name for name in SUMS if not name.startswith("calls") or name == counted]
    parts = entry_sums(now.dialect)
    rolled = _Rolled(ROLLUP, by, part, found).queries([ROLLUP.c[name] for name in names])
    each = select(*[d.sql for d in by], *[parts[name] for name in names])
    beside = [query.select_from(SOURCE) for query in _from_ledger(each, part, found, now)]
    if found.cut:
        parts = entry_sums(now.dialect, _opens(now.dialect))
        each = select(*[d.sql for d in by], *[parts[name] for name in names])
        beside += _moved(each.select_from(SOURCE), by, names, part, found, now)
    both = union_all(*rolled, *beside).subquery("both")
    figures = {"calls" if name == counted else name: both.c[name] for name in names if name != "entries"}
    sums = [what.label(name) for name, what in sums_of(figures).items()]
    keys = [both.c[d.sql.name] for d in by]
    return select(*keys, *sums).group_by(*keys).having(func.sum(both.c.entries) > 0) if by else select(*sums)


def dearest_query(dimension: Dimension, part: Slice, found: Plan, now: Moment, most: int) -> Select[Any]:
    """The dearest values of a dimension that entries may lack, by a look at all of them. Only costs are summed."""
    each = select(dimension.sql, entry_sums(now.dialect)["cost_nanos"]).where(dimension.sql.element.is_not(None))
    rolled = _Rolled(ROLLUP, (dimension,), part, found).query([ROLLUP.c.cost_nanos])
    both = union_all(rolled, *_from_ledger(each.select_from(LEDGER), part, found, now)).subquery("both")
    key = both.c[dimension.sql.name]
    return select(key).group_by(key).order_by(func.coalesce(func.sum(both.c.cost_nanos), 0).desc(), key).limit(most)


def values_sums_query(dimension: Dimension, part: Slice, found: Plan, now: Moment) -> Select[Any]:
    """Sums of each value of a dimension that entries may lack, the dearest first; entries without one are left out."""
    calls = VARYING[frozenset(part.where) & _VARYING]
    names = [name for name in SUMS if not name.startswith("calls") or name == calls]
    parts = entry_sums(now.dialect)
    each = select(dimension.sql, *[parts[name] for name in names]).where(dimension.sql.element.is_not(None))
    beside = [query.select_from(SOURCE) for query in _from_ledger(each, part, found, now)]
    rolled = _Rolled(ROLLUP, (dimension,), part, found).query([ROLLUP.c[name] for name in names])
    both = union_all(rolled, *beside).subquery("both")
    figures = {"calls" if name == calls else name: both.c[name] for name in names if name != "entries"}
    sums = [what.label(name) for name, what in sums_of(figures).items()]
    key = both.c[dimension.sql.name]
    return select(key, *sums).group_by(key).order_by(func.coalesce(func.sum(both.c.cost_nanos), 0).desc(), key).limit(MAX_ROWS)


def ever_dearest_queries(dimension: Dimension, part: Slice, found: Plan, now: Moment, most: int) -> list[Select[Any]]:
    """The values of entries that the roll-up has not got yet. And of each team, model and lane that is asked for, or of all,
    those that were there in the slice's hours and cost most in their whole time, with that cost, `nanos`."""
    c = VALUES.c
    there = select(c.value, c.cost_nanos.label("nanos")).where(c.last_hour >= found.first - 1, c.first_hour <= found.last)
    ordered = there.order_by(c.cost_nanos.desc(), c.value).limit(most)
    new = select(dimension.sql.label("value")).distinct().select_from(LEDGER).where(seq(now.dialect) > now.rolled_to)
    if found.projects:
        dims = found.dims(dimension.name)
    else:
        dims = [within(dimension.name, *one) for one in product(_asked(part, "model", ""), _asked(part, "lane", ""))]
    whose = [c.team == team for team in _asked(part, "team", ALL_TEAMS)]
    if found.projects and "team" not in part.where:     # no row is about all teams together
        whose = [c.team != ALL_TEAMS]
    known = [ordered.where(c.dim == dim, team) for dim, team in product(dims, whose)]
    return [part.among(new.where(dimension.sql.element.is_not(None))), *known]


def _asked(part: Slice, name: str, all_of_them: str) -> list[str]:
    wanted = part.where.get(name, all_of_them)
    return [value for value in ([wanted] if wanted is None or isinstance(wanted, str) else wanted) if value is not None]


def entries_query(part: Slice, found: Plan, now: Moment) -> Select[Any]:
    """How many entries there are."""
    whole = _Rolled(ROLLUP, (), part, found).query([ROLLUP.c.entries])
    beside = _from_ledger(select(literal(1)).select_from(LEDGER), part, found, now)
    both = union_all(whole, *beside).subquery("both")
    return select(func.coalesce(func.sum(both.c.entries), 0).label("n"))


def hours_query(part: Slice, found: Plan) -> Select[Any]:
    """Whole hours that hold any, the newest first, with the attempts in them; of what the roll-up has."""
    each = _Rolled(ROLLUP, (), part, found).query([ROLLUP.c.hour, ROLLUP.c.attempts]).subquery("each_hour")
    n = func.sum(each.c.attempts)
    return select(each.c.hour, n.label("n")).group_by(each.c.hour).having(n > 0).order_by(each.c.hour.desc())


def values_query(dimension: Dimension, part: Slice, found: Plan, now: Moment) -> Select[Any]:
    """The values of a dimension that occur."""
    beside = _from_ledger(select(dimension.sql).select_from(LEDGER), part, found, now)
    both = union_all(_Rolled(ROLLUP, (dimension,), part, found).query([]), *beside).subquery("both")
    return select(both.c[dimension.sql.name]).distinct().limit(MAX_ROWS)


# waiting times


def bins_query(by: Sequence[Dimension], part: Slice, of: Of, found: Plan, now: Moment) -> Select[Any]:
    """Attempts by bin, as `latency.bins` reads them."""
    rolled = _Rolled(LATENCY, by, part, found).query([LATENCY.c.bin, LATENCY.c.n]).where(LATENCY.c.of == of)
    ms, condition = SPANS[of]
    each = select(*[d.sql for d in by], BIN(ms).label("bin"), literal(1).label("n")).where(IS_ATTEMPT, condition)
    beside = _from_ledger(each.select_from(LEDGER), part, found, now)
    if found.cut:
        beside += _moved(each.select_from(LEDGER), by, ("n",), part, found, now)
    both = union_all(rolled, *beside).subquery("both")
    keys = [*[both.c[d.sql.name] for d in by], both.c.bin]
    n = func.sum(both.c.n)
    return select(*keys, n.label("n")).group_by(*keys).having(n > 0)


# the two sources


@dataclass(frozen=True, slots=True)
class _Rolled:
    """The rows of a roll-up that belong to a slice."""

    table: Table
    by: Sequence[Dimension]
    part: Slice
    plan: Plan

    def queries(self, figures: Sequence[ColumnElement[Any]]) -> list[Select[Any]]:
        """Where a run or a tag splits, entries without one are what is left of all of them."""
        if not any(sparse(d.name) for d in self.by) or any(map(sparse, self.part.where)):
            return [self.query(figures)]
        rest = replace(self, plan=replace(self.plan, dim=self.plan.rest))
        return [self.query(figures), rest.query(figures), self.query([-figure for figure in figures], without=True)]

    def query(self, figures: Sequence[ColumnElement[Any]], without: bool = False) -> Select[Any]:
        c, found = self.table.c, self.plan
        lacking = [sparse(d.name) and (without or d.name not in found.dim) for d in self.by]
        keys = [null() if lacks else self._key(d) for d, lacks in zip(self.by, lacking, strict=True)]
        query = select(*[key.label(d.sql.name) for key, d in zip(keys, self.by, strict=True)], *figures)
        query = query.where(c.dim.in_(found.dims(",".join(found.dim))), c.hour >= found.first, c.hour < found.last)
        for name, wanted in self.part.where.items():
            values = [wanted] if wanted is None or isinstance(wanted, str) else list(wanted)
            if name == "team":
                query = query.where(c.team.in_([value for value in values if value]))
            elif name != "project" or not found.projects:
                query = query.where(self._value(name).in_([NONE if value is None else value for value in values]))
        return query if "team" in self.part.where else query.where(self._teams())

    def _teams(self) -> ColumnElement[bool]:
        """The rows of all teams together, but where they are asked for one by one, or kept one by one only."""
        team = self.table.c.team
        apart = any(map(sparse, self.plan.dim)) or any(d.name == "team" or sparse(d.name) for d in self.by)
        return team != ALL_TEAMS if apart or self.plan.projects else team == ALL_TEAMS

    def _value(self, name: str) -> ColumnElement[Any]:
        return self.table.c[PLACES[self.plan.dim.index(name)]]

    def _key(self, dimension: Dimension) -> ColumnElement[Any]:
        c = self.table.c
        if dimension.name == "day" or (dimension.name == "hour" and self.plan.cut):
            return _time(dimension, _end(c.hour), self.part)
        if dimension.name == "hour":
            return c.hour * literal(HOUR_US, BigInteger)
        return c.team if dimension.name == "team" else func.nullif(self._value(dimension.name), NONE)


def _end(hour: ColumnElement[int]) -> ColumnElement[int]:
    """SQL: the last microsecond of an hour of the roll-up."""
    return hour * literal(HOUR_US, BigInteger) + literal(HOUR_US - 1, BigInteger)


def _time(dimension: Dimension, at_us: ColumnElement[int], part: Slice) -> ColumnElement[int]:
    """SQL: the day or hour of an instant, as `Dimension` counts it."""
    of = days.day_number if dimension.name == "day" else days.hour_start
    return of(at_us, dimension.tz, *part.clock_bounds)


def _from_ledger(each: Select[Any], part: Slice, found: Plan, now: Moment) -> list[Select[Any]]:
    """Entries outside the whole hours, and those that the roll-up has not got yet."""
    first_us, last_us = found.first * HOUR_US, found.last * HOUR_US
    if first_us >= last_us:
        return [part.apply(each)]
    pieces = [(a, b) for a, b in ((part.since_us, first_us), (last_us, part.until_us)) if a < b]
    at_us: ColumnElement[int] = C.at_us + literal_column("0", BigInteger)      # no index: the newest entries are fewer
    queries = [part.among(each).where(seq(now.dialect) > now.rolled_to, at_us >= first_us, at_us < last_us)]
    if pieces:
        queries.append(part.among(each).where(_within(pieces)))
    return queries


def _moved(
    each: Select[Any], by: Sequence[Dimension], figures: Sequence[str], part: Slice, found: Plan, now: Moment
) -> list[Select[Any]]:
    """The beginnings of hours that are cut, of what the roll-up has: added to the day or hour that they belong to, and taken
    from that of their hour's end, where the roll-up's row of the hour counts."""
    place = seq(now.dialect) + literal_column("0", BigInteger)      # no index: nearly all are
    of_end = _time(by[0], _end(C.at_us // literal(HOUR_US, BigInteger)), part).label("of_end")
    piece = part.among(each.add_columns(of_end)).where(place <= now.rolled_to, _within(found.cut)).subquery("piece")
    names = list(each.selected_columns.keys())
    keys = [piece.c[name] for name in (*names, "of_end") if name not in figures]
    sums = [cast(func.sum(piece.c[name]), BigInteger).label(name) for name in figures]
    moved = select(*keys, *sums).group_by(*keys).cte("moved")
    taken = {by[0].sql.name: moved.c.of_end} | {name: -moved.c[name] for name in figures}
    return [select(*[moved.c[name] for name in names]), select(*[taken.get(name, moved.c[name]).label(name) for name in names])]


@cache
def _opens(dialect: str) -> ColumnElement[bool]:
    """Of rows of pieces of hours: the first attempt of its call; all of a call's are of one time. A look at the call's other
    attempts, one by one, would take longer than all the rest."""
    order = func.row_number().over(partition_by=[C.at_us, C.call_id, C.kind], order_by=seq(dialect))
    return order == literal_column("1", BigInteger)


def _within(pieces: Sequence[tuple[int, int]]) -> ColumnElement[bool]:
    return or_(*[and_(C.at_us >= first, C.at_us < last) for first, last in pieces])
