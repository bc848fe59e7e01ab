"""The statements that keep the roll-ups, each built and compiled once in a process: SQLAlchemy takes longer for that than the
database for a small step. They run as they are, by `exec_driver_sql`, with the places of two entries for parameters.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    String,
    Table,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)  # fmt: skip
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import CompoundSelect

from gateway.ledger.days import HOUR_US
from gateway.ledger.latency import BIN, SPANS, Of
from gateway.ledger.measures import IS_ATTEMPT, PER_ENTRY, SOURCE
from gateway.ledger.rollup_tables import (
    ALL_TEAMS,
    KEY,
    LATENCY,
    LATENCY_KEY,
    MONEY,
    NONE,
    OF_PROJECT,
    PLACES,
    RATES,
    ROLLUP,
    SUMS,
    VALUES,
    VALUES_KEY,
    WITHIN,
    seq,
)  # fmt: skip
from gateway.ledger.slices import column_of
from gateway.ledger.tables import LEDGER

C = LEDGER.c
_DRIVERS: Mapping[str, Any] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}

OF_ENTRY = {
    name: column_of(name)
    for name in (
        "project", "key", "model", "backend", "lane", "class", "client", "status", "provider", "miss", "prices",
    )
}  # fmt: skip
"""Dimension -> the entry's value."""
FILTERED = ("model", "lane")
"""By these every other value can be narrowed."""
_NARROWINGS = ((), *[(name,) for name in FILTERED], FILTERED)
_TRIPLES = tuple((name, *FILTERED) for name in ("project", "key", "backend", "class", "client", "status", "miss", "prices"))
RUN = ("run", *FILTERED)
DIMS: tuple[tuple[str, ...], ...] = ((), *[(name,) for name in OF_ENTRY], ("lane", "class"), FILTERED, *_TRIPLES, RUN)
"""And one for each tag, of its value, model and lane: see `tag_dim`."""
VARYING: Mapping[frozenset[str], str] = {
    frozenset(): "calls", frozenset({"backend"}): "calls_backend", frozenset({"lane"}): "calls_lane",
    frozenset({"backend", "lane"}): "calls_backend_lane", frozenset({"provider"}): "calls_provider",
    frozenset({"status"}): "calls_status", frozenset({"miss"}): "calls_miss",
    frozenset({"lane", "status"}): "calls_lane_status", frozenset({"lane", "miss"}): "calls_lane_miss",
}  # fmt: skip
"""Dimensions that may differ between the attempts of a call -> the column that counts calls within them."""
LATENCY_DIMS: tuple[tuple[str, ...], ...] = (
    ("lane",), ("lane", "class"), ("prompt", "lane"), *[(name, *FILTERED) for name in ("class", "backend", "prompt")],
)  # fmt: skip


def tag_dim(name: str) -> tuple[str, ...]:
    """`name` with `tag:` in front."""
    return (name, *FILTERED)


@dataclass(frozen=True, slots=True)
class Statements:
    """In the order of a step. Where a statement takes two places, it is about the entries after the first, up to the second."""

    lock: tuple[str, ...]
    """The state's row is there and ours, and all entries up to the newest can be seen."""
    where: str
    """Up to which place entries are in, and the newest one's."""
    batch: str
    """Takes a place and a number: how many entries are behind it, at most that number, and the last one's place."""
    fresh: str
    """Price rows, as text, that no entry named before."""
    rate: str
    """Keeps the rates of one; columns of `price_rates` in their order."""
    sums: str
    latency: str
    values: str
    done: str
    """Takes the place, the entries added, and the time in microseconds."""


@cache
def statements(dialect: str) -> Statements:
    place, row = seq(dialect), cast(C.price_rows, String)
    marks = [_mark(dialect, n) for n in range(1, len(RATES.c) + 1)]
    between = _between(dialect)
    there = "INSERT INTO rollup_state (id, seq, entries, rolled_us) VALUES (1, 0, 0, 0) ON CONFLICT (id) DO NOTHING"
    own = (
        "SET LOCAL lock_timeout = '5s'", "SET LOCAL enable_seqscan = off", "LOCK TABLE ledger IN SHARE MODE",
        "SELECT seq FROM rollup_state FOR UPDATE",
    )  # fmt: skip
    newest = select(func.coalesce(func.max(place), 0)).select_from(LEDGER)
    behind = select(place.label("place")).select_from(LEDGER).where(between[0]).order_by(place)
    behind = behind.limit(literal_column(_mark(dialect, 2)))
    fresh = select(row).distinct().where(*between, row != "[]").except_(select(RATES.c.rows))
    return Statements(
        lock=(there, *own) if dialect == "postgresql" else (there,),      # on SQLite whoever writes has it alone
        where=f"SELECT seq, ({_text(dialect, newest)}) AS newest FROM rollup_state",
        batch=f"SELECT count(*) AS entries, max(place) AS until FROM ({_text(dialect, behind)}) AS batch",
        fresh=_text(dialect, fresh),
        rate=f"INSERT INTO price_rates ({', '.join(c.name for c in RATES.c)}) VALUES ({', '.join(marks)})",
        sums=_sums(dialect),
        latency=_latency(dialect),
        values=_values_of_many(dialect),
        done="UPDATE rollup_state SET seq = {}, entries = entries + {}, rolled_us = {}".format(*marks),
    )


def _between(dialect: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    place = seq(dialect)
    return place > literal_column(_mark(dialect, 1)), place <= literal_column(_mark(dialect, 2))


def _mark(dialect: str, n: int) -> str:
    return f"?{n}" if dialect == "sqlite" else f"${n}"


def _text(dialect: str, query: Select[Any] | CompoundSelect[Any]) -> str:
    return str(query.compile(dialect=_DRIVERS[dialect](), compile_kwargs={"literal_binds": True}))


# what an entry adds


@cache
def entry_sums(dialect: str, opens: ColumnElement[bool] | None = None) -> Mapping[str, ColumnElement[Any]]:
    """SQL, selected from `SOURCE`: what one entry adds to each of `SUMS`, as the order of insertion says. `opens`: where it
    holds, an entry is known to be its call's first."""
    sums = {
        "entries": literal_column("1", BigInteger),
        **{name: _first(dialect, dims, opens) for dims, name in VARYING.items()},
        "unpriced": _unpriced(dialect),
        **PER_ENTRY,
    }
    return {name: what.label(name) for name, what in sums.items()}


def _first(dialect: str, dims: frozenset[str], opens: ColumnElement[bool] | None) -> ColumnElement[int]:
    """1 for the attempt of a call that came first of those with its values."""
    first = ~_follows(dialect, dims)
    return case((IS_ATTEMPT & (first if opens is None else or_(opens, first)), 1), else_=0)


def _follows(dialect: str, dims: frozenset[str]) -> ColumnElement[bool]:
    """Whether an attempt of the same call with the same values came before the entry."""
    earlier = LEDGER.alias("earlier")
    before = and_(earlier.c.call_id == C.call_id, earlier.c.kind == "attempt", _place(dialect, "earlier") < seq(dialect))
    same = [
        _miss(dialect, "earlier").is_not_distinct_from(_miss(dialect, "ledger"))
        if name == "miss"
        else earlier.c[name] == C[name]
        for name in sorted(dims)
    ]
    return exists(1).where(before, *same).select_from(earlier).correlate(LEDGER)


def _place(dialect: str, table: str) -> ColumnElement[int]:
    """Not by its index: in a young table, which has no statistics yet, PostgreSQL would look all earlier entries up by it."""
    return seq(dialect, table) + literal_column("0", BigInteger)


def _miss(dialect: str, table: str) -> ColumnElement[str]:
    """In words that need no parameter: what compares two rows is compiled before the rest."""
    kind = f"json_extract({table}.miss, '$.kind')" if dialect == "sqlite" else f"{table}.miss ->> 'kind'"
    return literal_column(kind, String)


def _unpriced(dialect: str) -> ColumnElement[int]:
    """An attempt without a price adds one; the first correction that brings it one takes it away."""
    old, other = LEDGER.alias("old"), LEDGER.alias("other")
    was_unknown = exists(1).where(old.c.id == C.corrects, old.c.cost_nanos.is_(None)).select_from(old).correlate(LEDGER)
    earlier = and_(other.c.corrects == C.corrects, other.c.cost_nanos.is_not(None), _place(dialect, "other") < seq(dialect))
    first = ~exists(1).where(earlier).select_from(other).correlate(LEDGER)
    mends = and_(C.corrects.is_not(None), C.cost_nanos.is_not(None))
    return case((IS_ATTEMPT & C.cost_nanos.is_(None), 1), (mends, case((was_unknown & first, -1), else_=0)), else_=0)


# what a step adds


def _sums(dialect: str) -> str:
    """Adds entries to `rollup`: first to groups of all dimensions, those to each."""
    values = {name: what.label(name) for name, what in OF_ENTRY.items()}
    looked = select(seq(dialect).label("place"), (~_follows(dialect, frozenset())).label("opens")).select_from(LEDGER)
    # else it would be looked up again for each column
    once = looked.where(*_between(dialect)).cte("looked").prefix_with("MATERIALIZED")
    sums = entry_sums(dialect, once.c.opens)
    keys = [_hour(), C.team, C.run, cast(C.tags, String).label("tags"), *values.values()]
    fresh = _fresh(dialect, select(*keys, *sums.values()).select_from(SOURCE.join(once, once.c.place == seq(dialect))))
    base = _grouped(fresh, [fresh.c[name] for name in ("hour", "team", *OF_ENTRY)], SUMS).cte("base")
    parts = [part for dims in DIMS if dims != RUN for part in _levels(base, dims, SUMS)]
    parts += [*_runs(fresh), *_tags(fresh, dialect)]
    return _upsert(dialect, ROLLUP, parts, KEY, {name: _plus(name) for name in SUMS})


def _latency(dialect: str) -> str:
    """Adds the waiting times of the same entries to `rollup_latency`."""
    values = [OF_ENTRY[name].label(name) for name in ("project", "lane", "class", "backend", "model")]
    bins = [case((condition, BIN(ms)), else_=null()).label(of) for of, (ms, condition) in SPANS.items()]
    keys = [_hour(), C.team, *values, column_of("prompt").label("prompt"), *bins]
    fresh = _fresh(dialect, select(*keys, literal(1).label("n")).where(IS_ATTEMPT))
    parts: list[Select[Any]] = []
    for of in SPANS:        # each by itself: few attempts agree in all three
        names = ["hour", "team", *[value.name for value in values], "prompt", of]
        some = _grouped(fresh, [fresh.c[name] for name in names], ("n",)).where(fresh.c[of].is_not(None)).cte(f"base_{of}")
        parts += [part for dims in LATENCY_DIMS for part in _latency_levels(some, of, dims)]
    return _upsert(dialect, LATENCY, parts, LATENCY_KEY, {"n": _plus("n")})


def _values_of_many(dialect: str) -> str:
    """Adds the runs and tags of the same entries to `rollup_values`."""
    names = [C.team, C.project, C.run, C.model, C.lane, cast(C.tags, String).label("tags")]
    fresh = _fresh(dialect, select(_hour(), *names, func.coalesce(C.cost_nanos, 0).label("cost_nanos")))
    figures = [fresh.c[name] for name in ("team", "project", "model", "lane", "hour", "cost_nanos")]
    runs = select(literal("run").label("dim"), fresh.c.run.label("value"), *figures).where(fresh.c.run.is_not(None))
    key, value, among = _each_tag(fresh, dialect)
    tags = select((literal("tag:") + key).label("dim"), value.label("value"), *figures)
    tags = tags.select_from(among).where(fresh.c.tags != "{}")
    each = union_all(runs, tags).cte("each_value")
    scopes = _scopes(each)
    parts = [_values_within(each, kept, scope) for kept in _NARROWINGS for scope in scopes if not kept or scope.project is None]
    sets = {"first_hour": _least("first_hour", "<"), "last_hour": _least("last_hour", ">"), "cost_nanos": _plus("cost_nanos")}
    return _upsert(dialect, VALUES, parts, VALUES_KEY, sets)


def _values_within(each: CTE, kept: tuple[str, ...], scope: _Scope) -> Select[Any]:
    """Rows of all values, within each model and lane as far as they are `kept`; see `within`."""
    dim: ColumnElement[str] = scope.dim(each.c.dim)
    for name in FILTERED if kept else ():
        dim = dim + literal(WITHIN) + (each.c[name] if name in kept else literal(""))
    hours = [func.min(each.c.hour).label("first_hour"), func.max(each.c.hour).label("last_hour")]
    cost = cast(func.sum(each.c.cost_nanos), BigInteger).label("cost_nanos")
    query = select(dim.label("dim"), scope.team.label("team"), each.c.value, *hours, cost).where(*scope.has)
    return query.group_by(each.c.dim, each.c.value, *[each.c[name] for name in kept], *scope.keys)


def _hour() -> ColumnElement[int]:
    return (C.at_us // literal(HOUR_US)).label("hour")


def _fresh(dialect: str, query: Select[Any]) -> CTE:
    return query.where(C.kind != "verdict", *_between(dialect)).cte("fresh")


def _grouped(source: CTE, keys: Sequence[ColumnElement[Any]], sums: Sequence[str]) -> Select[Any]:
    totals = [cast(func.sum(source.c[name]), ROLLUP.c.entries.type).label(name) for name in sums]
    return select(*keys, *totals).group_by(*keys)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Whose entries one row sums: a team's, everybody's, or those of one project of a team."""

    team: ColumnElement[Any]
    keys: tuple[ColumnElement[Any], ...] = ()
    project: ColumnElement[Any] | None = None

    @property
    def has(self) -> tuple[ColumnElement[bool], ...]:
        return () if self.project is None else (self.project.is_not(None),)

    def dim(self, name: ColumnElement[str]) -> ColumnElement[str]:
        return name if self.project is None else name + literal(OF_PROJECT) + self.project


def _scopes(base: CTE) -> list[_Scope]:
    team, project = base.c.team, base.c.project
    return [_Scope(team, (team,)), _Scope(literal(ALL_TEAMS)), _Scope(team, (team, project), project)]


def _levels(base: CTE, dims: tuple[str, ...], sums: Sequence[str]) -> list[Select[Any]]:
    """Rows of one dimension, for each scope; a project's by project would say nothing new."""
    values, dim = _values(base, dims), literal(",".join(dims))
    totals = [func.sum(base.c[name]).label(name) for name in sums]
    return [
        select(scope.dim(dim).label("dim"), scope.team.label("team"), base.c.hour, *_labelled(values), *totals)
        .where(*scope.has).group_by(base.c.hour, *values, *scope.keys)
        for scope in _scopes(base) if scope.project is None or "project" not in dims
    ]  # fmt: skip


def _values(base: CTE, dims: tuple[str, ...]) -> list[ColumnElement[Any]]:
    return [func.coalesce(base.c[name], NONE) for name in dims]


def _labelled(values: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    padded = [*values, *[literal("")] * (len(PLACES) - len(values))]
    return [value.label(name) for value, name in zip(padded, PLACES, strict=True)]


def _runs(fresh: CTE) -> list[Select[Any]]:
    """A row for each run. Runs and tags have no row for entries without one, and none for all teams together."""
    return _sparse(fresh, fresh, literal(",".join(RUN)), [fresh.c[name] for name in RUN], fresh.c.run.is_not(None))


def _tags(fresh: CTE, dialect: str) -> list[Select[Any]]:
    """A row for each value of each tag."""
    key, value, among = _each_tag(fresh, dialect)
    dim = literal("tag:") + key + literal("".join(f",{name}" for name in FILTERED))
    keys = [value, *[fresh.c[name] for name in FILTERED]]
    return _sparse(fresh, among, dim, keys, fresh.c.tags != "{}", key)


def _sparse(
    fresh: CTE, among: FromClause, dim: ColumnElement[str], keys: Sequence[ColumnElement[Any]], has: ColumnElement[bool],
    *more: ColumnElement[Any],
) -> list[Select[Any]]:  # fmt: skip
    totals = [func.sum(fresh.c[name]).label(name) for name in SUMS]
    return [
        select(scope.dim(dim).label("dim"), scope.team.label("team"), fresh.c.hour, *_labelled(keys), *totals)
        .select_from(among).where(has, *scope.has).group_by(fresh.c.hour, *more, *keys, *scope.keys)
        for scope in _scopes(fresh) if scope.keys
    ]  # fmt: skip


def _each_tag(fresh: CTE, dialect: str) -> tuple[ColumnElement[str], ColumnElement[str], FromClause]:
    """The name and the value of each tag of each entry, and what they are selected from."""
    each = func.json_each(fresh.c.tags) if dialect == "sqlite" else func.jsonb_each_text(cast(fresh.c.tags, postgresql.JSONB))
    tag = each.table_valued("key", "value", name="tag")
    return tag.c.key, cast(tag.c.value, String), fresh.join(tag, literal_column("true"))


def _latency_levels(base: CTE, of: Of, dims: tuple[str, ...]) -> list[Select[Any]]:
    values, count, dim = _values(base, dims), func.sum(base.c.n).label("n"), literal(",".join(dims))
    return [
        select(literal(of).label("of"), scope.dim(dim).label("dim"), scope.team.label("team"), base.c.hour, *_labelled(values),
               base.c[of].label("bin"), count)
        .where(*scope.has).group_by(*values, base.c.hour, base.c[of], *scope.keys)
        for scope in _scopes(base)
    ]  # fmt: skip


def _upsert(dialect: str, table: Table, parts: Sequence[Select[Any]], key: Sequence[str], sets: Mapping[str, str]) -> str:
    """`sets`: column -> its new value, where `old` is the row that is there and `excluded` the one that is added."""
    union = union_all(*parts).subquery("part")
    rows = select(*union.c).where(literal_column("true"))       # SQLite takes ON for a join's without it
    changed = ", ".join(f"{name} = {what}" for name, what in sets.items())
    columns = ", ".join((*key, *sets))
    into = f"INSERT INTO {table.name} AS old ({columns}) {_text(dialect, rows)}"
    return f"{into} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"


def _plus(name: str) -> str:
    old, new = f"old.{name}", f"excluded.{name}"
    return f"coalesce({old} + {new}, {old}, {new})" if name in MONEY else f"{old} + {new}"


def _least(name: str, less: str) -> str:
    return f"CASE WHEN old.{name} {less} excluded.{name} THEN old.{name} ELSE excluded.{name} END"
