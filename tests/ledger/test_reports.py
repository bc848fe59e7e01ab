"""Sums are right: each measure, each way to split, days in their zone, calls counted once."""
from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from gateway.core.money import nanos
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, days
from gateway.ledger.reports import BadQuery, Slice, day_range
from tests.ledger.generate import entries, entry

NOON = 1_764_072_000_000_000    # 2025-11-25 12:00 UTC


def at(text: str) -> int:
    return days.micros(datetime.fromisoformat(text).astimezone(UTC))


def seed(*rows: tuple[str, str]) -> list[Entry]:
    return [
        entry(id=f"a-{n}", call_id=f"c-{n}", team="alpha", at_us=at(when), cost_nanos=nanos(usd)) for n, (when, usd) in enumerate(rows)
    ]


def test_days_are_cut_in_the_chosen_zone_and_add_up(ledger: Any) -> None:
    """shared/cases DASH-01: half-hour zones, no day twice, no evening lost."""
    report = ledger(*seed(
        ("2026-03-09T18:29:59+00:00", "1"), ("2026-03-09T18:30:00+00:00", "2"), ("2026-03-10T18:29:59+00:00", "4"),
        ("2026-03-10T18:30:00+00:00", "8"), ("2026-03-11T18:29:59.999+00:00", "16"), ("2026-03-11T18:30:00+00:00", "32"),
    ))  # fmt: skip
    ask = {"name": "spend", "group_by": "day", "from": "2026-03-10", "to": "2026-03-11", "timezone": "Asia/Kolkata"}
    found = report.query(ask)
    assert [(row["key"], row["cost_usd"], row["requests"]) for row in found["rows"]] == [
        ("2026-03-10", "6.000000000", 2), ("2026-03-11", "24.000000000", 2),
    ]  # fmt: skip
    assert (found["total"]["cost_usd"], found["total"]["requests"]) == ("30.000000000", 4)
    for day, tz, usd in (("2026-03-10", "Asia/Kolkata", "6"), ("2026-03-10", "UTC", "12"), ("2026-03-09", "America/Los_Angeles", "3")):
        one = report.query({"name": "spend", "group_by": "none", "from": day, "to": day, "timezone": tz})
        assert nanos(one["total"]["cost_usd"]) == nanos(usd)


def test_attempts_are_not_calls(ledger: Any) -> None:
    """shared/cases DASH-02: three tries of one request and one of another are two requests, and all money counts."""
    some = [
        entry(id=f"a-{n}", call_id=call, attempt=attempt, at_us=NOON + n, status=status, cost_nanos=nanos(usd), backend=f"b{n}")
        for n, (call, attempt, status, usd) in enumerate([
            ("q-1", 1, "failed", "0"), ("q-1", 2, "cut", "0.30"), ("q-1", 3, "ok", "0.50"), ("q-2", 1, "ok", "0.20"),
        ])
    ]  # fmt: skip
    report = ledger(*some)
    total = report.spend().total
    assert (total.calls, total.attempts, total.cost_nanos, total.failed, total.retries) == (2, 4, nanos("1"), 2, 2)
    by_backend = report.spend(("backend",))
    assert [row.calls for row in by_backend.rows] == [1, 1, 1, 1]
    assert by_backend.total.calls == 2


@pytest.mark.parametrize(("tz", "first", "last", "sizes"), [
    pytest.param("America/New_York", date(2026, 3, 7), date(2026, 3, 9), [24, 23, 24], id="spring forward"),
    pytest.param("America/New_York", date(2026, 10, 31), date(2026, 11, 2), [24, 25, 24], id="fall back"),
    pytest.param("Australia/Lord_Howe", date(2026, 4, 4), date(2026, 4, 6), [24, 25, 24], id="half an hour more"),
])  # fmt: skip
def test_days_of_clock_changes_hold_their_hours(ledger: Any, tz: str, first: date, last: date, sizes: list[int]) -> None:
    """An entry at each full hour: 23 of them on the short day, 25 on the long one, and every hour has its own row."""
    since, until = day_range(first, last, tz)
    count = -(-(until - since) // days.HOUR_US)
    report = ledger(*(entry(id=f"a-{n}", call_id=f"c-{n}", at_us=since + n * days.HOUR_US) for n in range(count)))
    part = Slice(since_us=since, until_us=until, tz=tz)
    found = report.spend(("day",), part)
    assert [row.calls for row in found.rows] == sizes
    assert [row.key[0] for row in found.rows] == [date.fromordinal(first.toordinal() + n).isoformat() for n in range(3)]
    hours = report.spend(("hour",), part)
    assert len(hours.rows) in (count, count - 1)        # Lord Howe's extra half hour lies within an hour
    assert sum(row.calls for row in hours.rows) == count


def test_the_hour_that_comes_twice_stays_two(ledger: Any) -> None:
    report = ledger(*seed(("2026-11-01T05:10:00+00:00", "1"), ("2026-11-01T06:10:00+00:00", "2")))
    rows = report.spend(("hour",), Slice(tz="America/New_York")).rows
    assert [row.key[0] for row in rows] == ["2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00"]


def test_tokens_by_class_and_what_caching_saved(ledger: Any) -> None:
    report = ledger(
        entry(id="a-1", tokens=TokenUsage(uncached=100, cache_read=300, cache_write={"5m": 60, "1h": 40}, output=50, reasoning=20),
              cost_nanos=400, uncached_cost_nanos=1_000, predicted_read_tokens=350),
        entry(id="a-2", call_id="c-2", tokens=TokenUsage(uncached=500, output=10), cost_nanos=600, uncached_cost_nanos=None,
              predicted_read_tokens=400, miss={"kind": "timestamp"}),
        entry(id="a-3", call_id="c-3", tokens=TokenUsage(), cost_nanos=0, uncached_cost_nanos=0, status="failed", tokens_from="none",
              predicted_read_tokens=900),
    )  # fmt: skip
    total = report.spend().total
    assert (total.uncached, total.cache_read, total.cache_write, total.output, total.reasoning) == (600, 300, 100, 60, 20)
    assert (total.cost_nanos, total.saved_nanos, total.cache_share) == (1_000, 600, 0.3)
    assert (total.expected, total.missed, total.predicted_read, total.expected_read) == (2, 1, 750, 300)
    assert {row.key[0]: row.missed for row in report.cache(("miss",)).rows} == {None: 0, "timestamp": 1}


def test_a_price_that_is_not_known_is_counted_and_never_zero(ledger: Any) -> None:
    """Until a correction brings it."""
    unknown = entry(id="a-1", model="new", status="unpriced", cost_nanos=None, uncached_cost_nanos=None)
    report = ledger(unknown, entry(id="a-2", call_id="c-2"))
    rows = {row.key[0]: row for row in report.spend(("model",)).rows}
    assert (rows["new"].cost_nanos, rows["new"].unpriced) == (None, 1)
    assert (report.spend().total.cost_nanos, report.spend().total.unpriced) == (12_345_678, 1)
    refused = entry(id="a-3", call_id="c-3", model="new", status="failed", cost_nanos=0, uncached_cost_nanos=0, tokens=TokenUsage())
    assert ledger(unknown, refused).spend(("model",)).rows[0].cost_nanos is None
    fix = entry(id="x-1", model="new", kind="correction", corrects="a-1", cost_nanos=7, uncached_cost_nanos=9, tokens=TokenUsage())
    rows = {row.key[0]: row for row in ledger(unknown, fix).spend(("model",)).rows}
    assert (rows["new"].cost_nanos, rows["new"].unpriced, rows["new"].calls, rows["new"].attempts) == (7, 0, 1, 1)


@pytest.mark.parametrize("by", [
    (), ("team",), ("day", "team"), ("hour",), ("tag:feature",), ("class", "lane", "model"), ("key",), ("project",), ("client",), ("run",),
    ("subgoal",), ("status",), ("provider", "tier"), ("served_model",), ("miss",),
])  # fmt: skip
def test_every_split_adds_up_to_the_total(ledger: Any, by: tuple[str, ...]) -> None:
    """Whatever the split: money, tokens and attempts of the rows are those of the whole, and of the entries themselves."""
    some = list(entries(600, NOON))
    sums = ledger(*some).spend(by, Slice(tz="America/New_York"))
    assert sums.total.cost_nanos == sum(e.cost_nanos or 0 for e in some)
    assert sums.total.calls == len({e.call_id for e in some})
    assert sums.total.input_total == sum(e.tokens.input_total for e in some)
    if by:
        assert sum(row.cost_nanos or 0 for row in sums.rows) == sums.total.cost_nanos
        assert sum(row.attempts for row in sums.rows) == sums.total.attempts == len(some)


def test_filters_narrow(ledger: Any) -> None:
    """One value, several, none at all, and a tag."""
    report = ledger(
        entry(id="a-1", call_id="c-1", team="one", tags={"x": "1"}), entry(id="a-2", call_id="c-2", team="two", project="p"),
        entry(id="a-3", call_id="c-3", team="three"),
    )  # fmt: skip
    for where, calls in (
        ({"team": "one"}, 1), ({"team": ["one", "two"]}, 2), ({"project": None}, 2), ({"project": ["p", None]}, 3), ({"tag:x": "1"}, 1),
        ({"team": "one", "project": "p"}, 0), ({"team": []}, 0),
    ):  # fmt: skip
        assert report.spend((), Slice(where=where)).total.calls == calls, where


def test_the_end_of_a_slice_is_not_in_it(ledger: Any) -> None:
    report = ledger(entry(at_us=NOON))
    assert report.spend((), Slice(since_us=NOON, until_us=NOON + 1)).total.calls == 1
    assert report.spend((), Slice(since_us=NOON - 1, until_us=NOON)).total.calls == 0


def test_a_team_asks_for_itself_only(ledger: Any) -> None:
    """Naming another team gives nothing, not that team's figures."""
    report = ledger(entry(id="a-1", team="mine", at_us=NOON), entry(id="a-2", call_id="c-2", team="theirs", at_us=NOON))
    ask = {"name": "spend", "group_by": "team", "from": "2025-11-25", "to": "2025-11-25"}
    assert [row["key"] for row in report.query(ask)["rows"]] == ["mine", "theirs"]
    assert [row["key"] for row in report.query(ask, team="mine")["rows"]] == ["mine"]
    assert report.query({**ask, "team": "theirs"}, team="mine")["total"]["requests"] == 0
    assert report.call("c-2", team="mine") is None
    assert report.run("r-1", team="mine") is None
    with pytest.raises(BadQuery):
        report.query({**ask, "name": "secrets"})


def test_calls_are_listed_newest_first_and_found_by_what_one_knows(ledger: Any) -> None:
    report = ledger(
        entry(id="a-1", call_id="c-1", at_us=NOON), entry(id="a-2", call_id="c-1", attempt=2, at_us=NOON + 9),
        entry(id="a-3", call_id="c-2", at_us=NOON + 5, run="r-1", model="m%"), entry(id="a-4", call_id="d-1", at_us=NOON + 7, status="cut"),
    )  # fmt: skip
    def found(search: str, limit: int = 9) -> list[str]:
        return [call["id"] for call in report.call_list(search=search, limit=limit)]
    assert found("") == ["c-1", "d-1", "c-2"]
    assert found("", limit=1) == ["c-1"]
    assert found("c-") == ["c-1", "c-2"]
    assert (found("r-1"), found("m%"), found("cut"), found("%")) == (["c-2"], ["c-2"], ["d-1"], [])


def test_a_run_sums_its_subgoals(ledger: Any) -> None:
    report = ledger(*(entry(id=f"a-{n}", call_id=f"c-{n}", run="r-1", subgoal=goal) for n, goal in enumerate(("plan", "edit", "edit", None))))
    run = report.run("r-1")
    assert (run["calls"], run["cost_usd"]) == (4, "0.049382712")
    assert {goal["subgoal"]: goal["calls"] for goal in run["subgoals"]} == {"plan": 1, "edit": 2}
    assert len(run["latest_calls"]) == 4
    assert report.run("r-2") is None


def test_entries_can_be_read_page_by_page(ledger: Any) -> None:
    """In order of time, none twice, none left out."""
    some = [entry(id=f"a-{n}", call_id=f"c-{n}", at_us=NOON + n // 3) for n in range(10)]
    report, after, got = ledger(*some), (0, ""), []
    while page := report.entries(limit=4, after=after):
        got += page
        after = (page[-1].at_us, page[-1].id)
    assert got == some


def test_an_empty_ledger_answers_everything(ledger: Any) -> None:
    report = ledger()
    assert report.spend(("day", "team")).rows == ()
    assert report.spend().total.calls == 0
    assert (report.latency(), report.histogram(), report.call_list(), report.values("team")) == ([], [], [], [])
    assert (report.call("c-1"), report.extent().entries) == (None, 0)
    assert (report.spent(Slice(where={"team": "alpha"})), report.costs(["a"])) == (0, {})
