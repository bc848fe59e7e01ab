"""Roll-ups tell what the ledger tells: at any moment of rolling, for each split, each zone, with corrections and retries."""
from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as of_row
from dataclasses import replace as replaced
from datetime import date, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, rolled, rollup_sql
from gateway.ledger.days import HOUR_US, day_range
from gateway.ledger.reports import Reports, Slice, Sums, connect
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store, insert_entries
from tests.ledger.generate import entries, entry, write

NOON = 1_764_072_000_000_000    # 2025-11-25 12:00 UTC
RATES = {"input": 100, "cached": 10, "write_5m": 125, "write_1h": 200, "write_30m": 0, "write_12h": 0, "write_unknown": 125, "output": 500}
SPLITS: Sequence[tuple[str, ...]] = (
    (), ("team",), ("day", "team"), ("hour",), ("hour", "lane"), ("class", "lane"), ("backend", "lane"), ("status",), ("miss",), ("run",),
    ("tag:feature",), ("day", "tag:feature"), ("model",), ("client",), ("prices",), ("team", "key", "model"), ("project", "model"), ("provider",),
    ("key", "model"), ("tag:feature", "lane"), ("run", "model"), ("hour", "status", "lane"), ("miss", "lane", "model"),
)
ORDERED = ((), ("hour", "lane"), ("class", "lane"), ("backend", "lane"), ("status",), ("miss",), ("provider",), ("tag:feature",), ("model",), ("status", "lane"), ("miss", "lane"))
"""Splits whose calls, or attempts without a price, depend on what came first."""
PARTS = (
    Slice(), Slice(tz="Asia/Kolkata"), Slice(tz="America/New_York", since_us=NOON - 5 * 24 * HOUR_US - 12_345, until_us=NOON - 777),
    Slice(where={"team": "search"}), Slice(where={"team": ["search", "support"], "lane": "fast"}), Slice(where={"model": ["gpt-5.5", "none"]}),
    Slice(where={"team": []}), Slice(where={"lane": ["standard"], "model": "gpt-5.5"}), Slice(since_us=NOON - 40 * 60_000_000, until_us=NOON - 60_000_000),
)


def roll(url: str, upto: int | None = None, chunk: int = 700) -> int:
    """Adds to the roll-ups, all of them or about `upto` entries; how many."""

    async def work() -> int:
        store, done = Store(url), 0
        roller = Roller(store, lambda ids: RATES if len(ids) == 1 else None)
        while upto is None or done < upto:
            step = await roller.step(chunk)
            done += step.entries
            if not step.left:
                break
        await store.close()
        return done

    return run(work())


def run(work: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def add(url: str, *more: Entry) -> None:
    async def work() -> None:
        store = Store(url)
        async with store.begin() as connection:
            await insert_entries(connection, more)
        await store.close()

    run(work())


@pytest.fixture
def ledger(place: str) -> Iterator[Any]:
    opened: list[Reports] = []

    def make(*some: Entry) -> tuple[str, Reports]:
        write(place, some)
        opened.append(connect(place))
        return place, opened[-1]

    yield make
    for report in opened:
        report.close()


OF_PROJECTS = ({"team": "search", "project": "ranking"}, {"project": ["other", "agents", "none"], "lane": "standard"}, {"project": [None, "other"]})


def in_projects(some: Iterable[Entry]) -> list[Entry]:
    """A third of the calls as they are, a third of a project that all teams share, a third of none."""
    return [replace(e, project=(e.project, "other", None)[int(e.call_id[5:]) % 3]) for e in some]


def test_projects_have_roll_ups_of_their_own(ledger: Any) -> None:
    """Every split and all waiting times of a project, half-way and when all is in; the roll-up tells them but where it cannot."""
    url, report = ledger(*in_projects(entries(300, NOON, days=3)))
    parts = [Slice(tz="America/New_York", where=where) for where in OF_PROJECTS]

    def told_of() -> Any:
        sums = [plain(report.spend(by, part)) for by in SPLITS for part in parts]
        return sums, [report.histogram(by, part) for by in (("lane",), ("day", "lane", "class"), ("prompt",)) for part in parts]

    fresh = told_of()
    roll(url, upto=100, chunk=100)
    assert told_of() == fresh
    roll(url)
    assert told_of() == fresh
    for by in (("run",), ("hour", "status", "lane"), ("tag:feature",), ("key",)):
        assert [rolled.plan(by, part) is not None for part in parts[:2]] == [True, True], by
    assert rolled.plan(("lane",), parts[0], rollup_sql.LATENCY_DIMS)


def told_by(report: Reports, splits: Sequence[tuple[str, ...]] = SPLITS) -> dict[str, Any]:
    return {f"{by}": plain(report.spend(by, Slice(tz="America/New_York"))) for by in splits}


def told(report: Reports) -> dict[str, Any]:
    """Everything that a report says, but cost by token class: that needs the rates, which come with the rolling."""
    found = told_by(report)
    found |= {f"{by} {part}": plain(report.spend(by, part)) for by in (("day", "model"), ("backend", "lane")) for part in PARTS}
    found["extent"] = report.extent()
    found["runs"] = sorted((row.key, row.cost_nanos, row.calls, row.attempts) for row in report.runs(Slice(tz="UTC")))
    found["values"] = [report.values(name) for name in ("team", "run", "model", "tag:feature")]
    found["bars"] = [report.histogram(by, part) for by in (("lane",), ("day", "lane", "class"), ("prompt",)) for part in PARTS[1:4]]
    return found


def plain(sums: Sums) -> Any:
    bare = {name: 0 for name in ("uncached_nanos", "cache_read_nanos", "cache_write_nanos", "output_nanos")}
    return sorted(str(of_row(row, **bare)) for row in sums.rows), of_row(sums.total, **bare)


def test_roll_ups_tell_what_the_ledger_tells(ledger: Any) -> None:
    """Before the first roll, half-way, and when all is in."""
    url, report = ledger(*entries(400, NOON, days=3))
    fresh = told(report)
    some = roll(url, upto=100, chunk=200)      # PostgreSQL's places go on from the test before
    assert 100 <= some < 400
    assert told(report) == fresh
    assert roll(url) == 400 - some
    assert told(report) == fresh
    assert roll(url) == 0


def test_gaps_between_entries_cost_no_steps(ledger: Any) -> None:
    """A step adds its number of entries, wherever they are: batches that were sent twice leave gaps on PostgreSQL."""
    some = list(entries(60, NOON, days=1))
    url, _ = ledger(*some)
    add(url, *some)
    add(url, *(replace(each, id=f"late-{each.id}", call_id=f"late-{each.call_id}") for each in some))
    assert [roll(url, upto=1, chunk=50) for _ in range(4)] == [50, 50, 20, 0]


def test_corrections_and_late_attempts_land_in_their_hour(ledger: Any) -> None:
    """In whatever order they come: a price that a correction brings, twice corrected, an attempt after the second one."""
    first = [
        entry(id="a-1", at_us=NOON, status="unpriced", cost_nanos=None, uncached_cost_nanos=None, model="new"),
        entry(id="b-2", call_id="b", attempt=2, at_us=NOON, backend="other"), entry(id="c-1", call_id="c", at_us=NOON, lane="fast", status="failed"),
    ]
    fix = entry(id="x-1", kind="correction", corrects="a-1", at_us=NOON, model="new", cost_nanos=7, uncached_cost_nanos=9, tokens=TokenUsage())
    later = [
        fix, replace(fix, id="x-2", cost_nanos=-2, uncached_cost_nanos=0), entry(id="b-1", call_id="b", at_us=NOON, status="failed"),
        entry(id="c-2", call_id="c", attempt=2, at_us=NOON, lane="fast"), entry(id="c-3", call_id="c", attempt=3, at_us=NOON),
    ]
    url, report = ledger(*first)
    roll(url)
    add(url, *later)
    waiting = told_by(report, ORDERED)
    roll(url, chunk=2)
    assert told_by(report, ORDERED) == waiting
    total = report.spend().total
    assert (total.calls, total.attempts, total.unpriced) == (3, 6, 0)
    assert {row.key[0]: row.calls for row in report.spend(("lane",)).rows} == {"fast": 1, "standard": 3}
    assert {row.key[0]: row.cost_nanos for row in report.spend(("model",)).rows}["new"] == 5


def test_costs_by_token_class_add_up(ledger: Any) -> None:
    """By the rows that the entries name; what they do not explain is `other`. Of an unknown cost no part is summed."""
    tokens = TokenUsage(uncached=1_000, cache_read=5_000, cache_write={"5m": 400, "1h": 10}, output=300)
    cost = (1_000 * 100 + 5_000 * 10 + 400 * 125 + 10 * 200 + 300 * 500) // 1_000
    url, report = ledger(
        entry(id="a-1", tokens=tokens, cost_nanos=cost + 55), entry(id="a-2", call_id="c-2", tokens=tokens, cost_nanos=cost, price_rows=("a", "b")),
        entry(id="a-3", call_id="c-3", tokens=TokenUsage(uncached=1_000), cost_nanos=None, uncached_cost_nanos=None, status="malformed"),
    )  # fmt: skip
    roll(url)
    for by in ((), ("team",), ("day", "team"), ("subgoal",)):
        total = report.spend(by).total
        assert total.cost_parts == {"uncached": 100, "cache_read": 50, "cache_write": 52, "output": 150, "other": 55 + cost}
        assert sum(total.cost_parts.values()) == total.cost_nanos


@pytest.mark.parametrize("tz", ["Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Europe/Berlin"])
def test_days_of_any_zone_are_exact(ledger: Any, tz: str) -> None:
    """An entry every ten minutes: a zone of half or quarter hours cuts an hour of the roll-up at each midnight."""
    url, report = ledger(*(entry(id=f"a-{n}", call_id=f"c-{n}", at_us=NOON + n * HOUR_US // 6) for n in range(400)))
    before = report.spend(("day",), Slice(tz=tz))
    roll(url)
    assert plain(report.spend(("day",), Slice(tz=tz))) == plain(before)
    day = before.rows[1].key[0]
    chosen = date.fromisoformat(str(day))
    since, until = day_range(chosen, chosen, tz)
    assert report.spend((), Slice(tz=tz, since_us=since, until_us=until)).total.calls == 144


def at(day: str) -> int:
    return int(datetime.fromisoformat(day).timestamp()) * 1_000_000


@pytest.mark.parametrize(("tz", "until_us"), [
    ("Asia/Kolkata", NOON), ("Asia/Kathmandu", NOON), ("Australia/Eucla", NOON), ("Pacific/Marquesas", NOON),
    ("America/St_Johns", at("2025-11-03T12:00Z")), ("America/St_Johns", at("2026-03-09T12:00Z")), ("America/St_Johns", at("2010-11-08T12:00Z")),
    ("Australia/Adelaide", at("2026-04-06T00:00Z")), ("Pacific/Chatham", at("2025-09-29T00:00Z")),
    ("Australia/Lord_Howe", at("2025-10-06T00:00Z")), ("Australia/Lord_Howe", at("2026-04-06T00:00Z")),
])  # fmt: skip
def test_days_and_hours_that_begin_within_an_hour_are_exact(ledger: Any, tz: str, until_us: int) -> None:
    """In zones of half and quarter hours, over their clock changes too, with retries, corrections and narrowed: to the cent what
    the ledger tells, half-way and when all is in; and the roll-up tells it."""
    some = list(entries(300, until_us, days=3))
    old = next(e for e in some if e.cost_nanos is None)
    fix = replace(old, id="x-1", kind="correction", corrects=old.id, cost_nanos=7, uncached_cost_nanos=9, tokens=TokenUsage())
    url, report = ledger(*some, fix)
    whole = Slice(tz=tz, since_us=some[0].at_us - 4 * HOUR_US + 777, until_us=until_us + 12_345)
    parts = [whole, replaced(whole, where={"team": "search"}), replaced(whole, where={"lane": ["fast", "standard"], "project": "agents"})]
    splits = [(time, *more) for time in ("day", "hour") for more in ((), ("team",), ("backend",), ("status", "lane"), ("run",))]
    waits = [(time, *more) for time in ("day", "hour") for more in (("lane",), ("prompt", "lane"))]

    def told_of() -> Any:
        sums = [(by, part, plain(report.spend(by, part))) for by in splits for part in parts]
        return sums, [(by, part, report.histogram(by, part)) for by in waits for part in parts]

    assert all(found.cut for by in splits for part in parts if (found := rolled.plan(by, part)) or pytest.fail(f"{by} {part}"))
    fresh = told_of()
    direct = report.spend(("subgoal", "day"), whole)        # as no roll-up tells it
    assert sum(row.cost_nanos or 0 for row in direct.rows) == sum(row.cost_nanos or 0 for row in report.spend(("day",), whole).rows)
    roll(url, upto=150, chunk=150)
    assert told_of() == fresh
    roll(url)
    assert told_of() == fresh
    days = {day: sum(row.cost_nanos or 0 for row in direct.rows if row.key[1] == day) for day in {row.key[1] for row in direct.rows}}
    assert {row.key[0]: row.cost_nanos or 0 for row in report.spend(("day",), whole).rows} == days


def test_a_ledger_that_is_another_is_noticed_and_rolled_anew(ledger: Any) -> None:
    url, report = ledger(*entries(300, NOON))
    roll(url)

    async def look() -> tuple[bool, bool]:
        store = Store(url)
        roller = Roller(store, lambda ids: None)
        good = await roller.damaged()
        async with store.begin() as connection:
            await connection.exec_driver_sql("DELETE FROM ledger WHERE id = (SELECT min(id) FROM ledger)")
        bad = await roller.damaged()
        await roller.reset()
        await store.close()
        return good, bad

    assert run(look()) == (False, True)
    assert report.extent().entries == 299
    assert roll(url) == 299
    assert report.spend().total.attempts == 299


def test_percentiles_over_many_attempts_come_from_bins(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are off by less than a bin, 12 %, and say so."""
    url, report = ledger(*entries(600, NOON, days=0.5))
    roll(url)
    exact = report.latency(("lane", "class"))
    monkeypatch.setattr("gateway.ledger.latency.EXACT_UP_TO", 10)
    binned = report.latency(("lane", "class"))
    assert [q.key for q in binned] == [q.key for q in exact]
    for a, b in zip(exact, binned, strict=True):
        assert (b.count, b.exact) == (a.count, False)
        for p in ("p50", "p95", "p99"):
            assert getattr(b, p) == pytest.approx(getattr(a, p), rel=0.13)
    splits = (("lane", "class"), ("lane",), ("hour", "lane"), ())
    asked_once = report.waits(splits, bars=("lane",))
    assert asked_once.by == {by: report.latency(by) for by in splits}
    assert asked_once.bars == report.histogram(("lane",))


def test_what_the_roll_up_cannot_tell_is_left_to_the_ledger() -> None:
    for by, part in (
        (("subgoal",), Slice()), (("status", "class"), Slice()), (("hour",), Slice(tz="Asia/Kolkata")), (("lane", "day"), Slice()),
        ((), Slice(where={"run": None})), (("day",), Slice(tz="Asia/Kolkata")),
    ):  # fmt: skip
        assert rolled.plan(by, part) is None, by
    assert rolled.plan(("day", "lane"), Slice(where={"model": "m"})) is not None
    assert set(rollup_sql.VARYING) >= {frozenset(dim) & {"backend", "lane", "status", "miss", "provider"} for dim in rollup_sql.DIMS}
