"""Keeps the roll-ups: adds what came since the last time, a few thousand entries in one transaction, in the database itself.

Everything in a roll-up is a sum over entries, corrections included, so late entries need no care: they are added to their
hour when they come. What a correction changes about an attempt that had no price is told by the order of insertion alone.
Two processes may roll at once: the state's row is locked, and the second finds nothing left to do.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Select,
    String,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    text,
    union_all,
    update,
)  # fmt: skip
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

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
    RATES,
    ROLLUP,
    STATE,
    SUMS,
    seq,
)  # fmt: skip
from gateway.ledger.slices import column_of
from gateway.ledger.sql import Store
from gateway.ledger.tables import LEDGER

C = LEDGER.c
CHUNK = 10_000
"""Entries that are added in one transaction."""
_DRIVERS: Mapping[str, Any] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}
RatesOf = Callable[[Sequence[str]], Mapping[str, int] | None]
"""Ids of price rows -> pico-dollars per token of each class (columns of `price_rates`); None: not known."""

VALUES = {
    name: column_of(name)
    for name in (
        "project", "key", "model", "backend", "lane", "class", "client", "status", "provider", "miss", "prices",
    )
}  # fmt: skip
"""Dimension -> the entry's value."""
PAIRS = (("lane", "class"), ("backend", "lane"), ("model", "lane"), ("model", "class"), ("project", "model"), ("key", "model"))
DIMS: tuple[tuple[str, ...], ...] = ((), *[(name,) for name in VALUES], *PAIRS, ("run",))
"""And tags: dimension `tag`, its name in `v1` and its value in `v2`."""
VARYING: Mapping[frozenset[str], str] = {
    frozenset(): "calls", frozenset({"backend"}): "calls_backend", frozenset({"lane"}): "calls_lane",
    frozenset({"backend", "lane"}): "calls_backend_lane", frozenset({"provider"}): "calls_provider",
    frozenset({"status"}): "calls_status", frozenset({"miss"}): "calls_miss",
}  # fmt: skip
"""Dimensions that may differ between the attempts of a call -> the column that counts calls within them."""
LATENCY_DIMS: tuple[tuple[str, ...], ...] = (("lane", "class"), ("backend", "lane"), ("model", "lane"), ("prompt", "lane"))

@dataclass(frozen=True, slots=True)
class Rolled:
    """What one step did. `left`: entries that wait still."""

    entries: int
    left: int


class Roller:
    """`step` until nothing is left; then again from time to time."""

    def __init__(self, store: Store, rates_of: RatesOf) -> None:
        self.store, self._rates_of = store, rates_of

    async def step(self, chunk: int = CHUNK) -> Rolled:
        """Adds up to `chunk` entries. Raises SQLAlchemy's errors; then nothing was added."""
        async with self.store.begin() as connection:
            dialect = connection.dialect.name
            newest = await self._newest(connection)
            done = (await connection.execute(select(STATE.c.seq).with_for_update())).scalar()
            if done is None:
                await connection.execute(insert(STATE).values(id=1, seq=0, entries=0, rolled_us=0))
                done = 0
            until = min(newest, done + chunk)
            count = 0
            if until > done:
                bounds = {"lo": done, "hi": until}
                await self._learn_rates(connection, bounds)
                await connection.execute(text(_sums_sql(dialect)), bounds)
                await connection.execute(text(_latency_sql(dialect)), bounds)
                counted = select(func.count()).where(seq(dialect) > done, seq(dialect) <= until).select_from(LEDGER)
                count = (await connection.execute(counted)).scalar_one()
            await connection.execute(
                update(STATE).values(seq=until, entries=STATE.c.entries + count, rolled_us=time.time_ns() // 1_000)
            )
        return Rolled(count, newest - until)

    async def _newest(self, connection: AsyncConnection) -> int:
        """All entries up to it can be seen: on PostgreSQL whoever is writing has to end first."""
        if connection.dialect.name == "postgresql":
            await connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            await connection.exec_driver_sql("LOCK TABLE ledger IN SHARE MODE")
        newest = select(func.coalesce(func.max(seq(connection.dialect.name)), 0)).select_from(LEDGER)
        return int((await connection.execute(newest)).scalar_one())

    async def _learn_rates(self, connection: AsyncConnection, bounds: Mapping[str, int]) -> None:
        """Keeps the rates of price rows that no entry named before."""
        place = seq(connection.dialect.name)
        rows = cast(C.price_rows, String)
        wanted = select(rows).distinct().where(place > bounds["lo"], place <= bounds["hi"], rows != "[]")
        for found in (await connection.execute(wanted.except_(select(RATES.c.rows)))).scalars().all():
            if rates := self._rates_of(orjson.loads(found)):
                await connection.execute(insert(RATES).values(rows=found, **rates))

    async def reset(self) -> None:
        """Forgets all sums; reports read the ledger itself until they are made again."""
        async with self.store.begin() as connection:
            for table in (ROLLUP, LATENCY, STATE, RATES):
                await connection.execute(delete(table))

    async def damaged(self) -> bool:
        """Whether the ledger is not the one that was rolled up: restored from a copy, or entries taken out of it."""
        async with self.store.begin() as connection:
            state = (await connection.execute(select(STATE.c.seq, STATE.c.entries))).first()
            if state is None:
                return False
            there = select(func.count()).select_from(LEDGER).where(seq(connection.dialect.name) <= state.seq)
            return bool((await connection.execute(there)).scalar_one() != state.entries)


# what an entry adds


@cache
def entry_sums(dialect: str) -> Mapping[str, ColumnElement[Any]]:
    """SQL, selected from `SOURCE`: what one entry adds to each of `SUMS`, as the order of insertion says."""
    sums = {
        "entries": literal_column("1", BigInteger),
        **{name: _first(dialect, dims) for dims, name in VARYING.items()},
        "unpriced": _unpriced(dialect),
        **PER_ENTRY,
    }
    return {name: what.label(name) for name, what in sums.items()}


def _first(dialect: str, dims: frozenset[str]) -> ColumnElement[int]:
    """1 for the attempt of a call that came first of those with its values."""
    earlier = LEDGER.alias("earlier")
    before = and_(earlier.c.call_id == C.call_id, earlier.c.kind == "attempt", seq(dialect, "earlier") < seq(dialect))
    same = [
        _miss(dialect, "earlier").is_not_distinct_from(_miss(dialect, "ledger"))
        if name == "miss"
        else earlier.c[name] == C[name]
        for name in sorted(dims)
    ]
    return case((IS_ATTEMPT & ~exists(1).where(before, *same).select_from(earlier).correlate(LEDGER), 1), else_=0)


def _miss(dialect: str, table: str) -> ColumnElement[str]:
    """In words that need no parameter: what compares two rows is compiled before the rest."""
    kind = f"json_extract({table}.miss, '$.kind')" if dialect == "sqlite" else f"{table}.miss ->> 'kind'"
    return literal_column(kind, String)


def _unpriced(dialect: str) -> ColumnElement[int]:
    """An attempt without a price adds one; the first correction that brings it one takes it away."""
    old, other = LEDGER.alias("old"), LEDGER.alias("other")
    was_unknown = exists(1).where(old.c.id == C.corrects, old.c.cost_nanos.is_(None)).select_from(old).correlate(LEDGER)
    earlier = and_(other.c.corrects == C.corrects, other.c.cost_nanos.is_not(None), seq(dialect, "other") < seq(dialect))
    first = ~exists(1).where(earlier).select_from(other).correlate(LEDGER)
    mends = and_(C.corrects.is_not(None), C.cost_nanos.is_not(None))
    return case((IS_ATTEMPT & C.cost_nanos.is_(None), 1), (mends, case((was_unknown & first, -1), else_=0)), else_=0)


# the statements, made once


@cache
def _sums_sql(dialect: str) -> str:
    """Adds the entries after `:lo` up to `:hi` to `rollup`: first to groups of all dimensions, those to each."""
    values = {name: what.label(name) for name, what in VALUES.items()}
    sums = entry_sums(dialect)
    keys = [_hour(), C.team, C.run, cast(C.tags, String).label("tags"), *values.values()]
    fresh = _fresh(dialect, select(*keys, *sums.values()).select_from(SOURCE))
    base = _grouped(fresh, [fresh.c[name] for name in ("hour", "team", *VALUES)], SUMS).cte("base")
    parts = [part for dims in DIMS if dims != ("run",) for part in _levels(base, dims, SUMS)]
    parts += [_runs(fresh), _tags(fresh, dialect)]
    return _upsert(dialect, ROLLUP, (*KEY, *SUMS), parts, KEY, SUMS)


@cache
def _latency_sql(dialect: str) -> str:
    """Adds the waiting times of the same entries to `rollup_latency`."""
    values = [VALUES[name].label(name) for name in ("lane", "class", "backend", "model")]
    bins = [case((condition, BIN(ms)), else_=null()).label(of) for of, (ms, condition) in SPANS.items()]
    keys = [_hour(), C.team, *values, column_of("prompt").label("prompt"), *bins]
    fresh = _fresh(dialect, select(*keys, literal(1).label("n")).where(IS_ATTEMPT))
    parts: list[Select[Any]] = []
    for of in SPANS:        # each by itself: few attempts agree in all three
        names = ["hour", "team", *[value.name for value in values], "prompt", of]
        some = _grouped(fresh, [fresh.c[name] for name in names], ("n",)).where(fresh.c[of].is_not(None)).cte(f"base_{of}")
        parts += [part for dims in LATENCY_DIMS for part in _latency_levels(some, of, dims)]
    return _upsert(dialect, LATENCY, (*LATENCY_KEY, "n"), parts, LATENCY_KEY, ("n",))


def _hour() -> ColumnElement[int]:
    return (C.at_us // literal(HOUR_US)).label("hour")


def _fresh(dialect: str, query: Select[Any]) -> CTE:
    place = seq(dialect)
    return query.where(C.kind != "verdict", place > literal_column(":lo"), place <= literal_column(":hi")).cte("fresh")


def _grouped(source: CTE, keys: Sequence[ColumnElement[Any]], sums: Sequence[str]) -> Select[Any]:
    totals = [cast(func.sum(source.c[name]), ROLLUP.c.entries.type).label(name) for name in sums]
    return select(*keys, *totals).group_by(*keys)


def _levels(base: CTE, dims: tuple[str, ...], sums: Sequence[str]) -> list[Select[Any]]:
    """Rows of one dimension: of each team, and of all together."""
    values = _values(base, dims)
    totals = [func.sum(base.c[name]).label(name) for name in sums]
    teams: list[ColumnElement[Any]] = [base.c.team, literal(ALL_TEAMS)]
    return [
        select(literal(",".join(dims)).label("dim"), team.label("team"), base.c.hour, *_labelled(values), *totals)
        .group_by(base.c.hour, *values, *([team] if team is base.c.team else []))
        for team in teams
    ]  # fmt: skip


def _values(base: CTE, dims: tuple[str, ...]) -> list[ColumnElement[Any]]:
    return [func.coalesce(base.c[name], NONE) for name in dims]


def _labelled(values: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    both = [*values, literal(""), literal("")][:2]
    return [value.label(name) for value, name in zip(both, ("v1", "v2"), strict=True)]


def _runs(fresh: CTE) -> Select[Any]:
    """A row for each run. Runs and tags have no row for entries without one, and none for all teams together."""
    totals = [func.sum(fresh.c[name]).label(name) for name in SUMS]
    query = select(literal("run").label("dim"), fresh.c.team, fresh.c.hour, *_labelled([fresh.c.run]), *totals)
    return query.where(fresh.c.run.is_not(None)).group_by(fresh.c.team, fresh.c.hour, fresh.c.run)


def _tags(fresh: CTE, dialect: str) -> Select[Any]:
    """A row for each value of each tag."""
    each = func.json_each(fresh.c.tags) if dialect == "sqlite" else func.jsonb_each_text(cast(fresh.c.tags, postgresql.JSONB))
    tag = each.table_valued("key", "value", name="tag")
    name, value = tag.c.key, cast(tag.c.value, String)
    totals = [func.sum(fresh.c[name]).label(name) for name in SUMS]
    query = select(literal("tag").label("dim"), fresh.c.team, fresh.c.hour, *_labelled([name, value]), *totals)
    query = query.select_from(fresh.join(tag, literal_column("true"))).where(fresh.c.tags != "{}")
    return query.group_by(fresh.c.team, fresh.c.hour, name, value)


def _latency_levels(base: CTE, of: Of, dims: tuple[str, ...]) -> list[Select[Any]]:
    values, count = _values(base, dims), func.sum(base.c.n).label("n")
    teams: list[ColumnElement[Any]] = [base.c.team, literal(ALL_TEAMS)]
    head: list[ColumnElement[Any]] = [literal(of).label("of"), literal(",".join(dims)).label("dim")]
    return [
        select(*head, team.label("team"), base.c.hour, *_labelled(values), base.c[of].label("bin"), count)
        .group_by(*values, base.c.hour, base.c[of], *([team] if team is base.c.team else []))
        for team in teams
    ]  # fmt: skip


def _upsert(
    dialect: str, table: Any, columns: Sequence[str], parts: Sequence[Select[Any]], key: Sequence[str], sums: Sequence[str]
) -> str:
    driver = _DRIVERS[dialect]()
    union = union_all(*parts).subquery("part")
    rows = select(*union.c).where(literal_column("true"))       # SQLite takes ON for a join's without it
    query = str(rows.compile(dialect=driver, compile_kwargs={"literal_binds": True}))
    adds = ", ".join(f"{name} = {_plus(table.name, name)}" for name in sums)
    return f"INSERT INTO {table.name} ({', '.join(columns)}) {query} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {adds}"


def _plus(table: str, name: str) -> str:
    old, new = f"{table}.{name}", f"excluded.{name}"
    return f"coalesce({old} + {new}, {old}, {new})" if name in MONEY else f"{old} + {new}"
