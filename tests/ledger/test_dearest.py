"""The dearest runs and tags are those that all of them, sorted, begin with: over many hours, with late and corrected entries."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as of_row

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import dearest, rolled
from gateway.ledger.days import HOUR_US
from gateway.ledger.measures import Row
from gateway.ledger.reports import Reports, Slice, connect
from tests.ledger.generate import entries, entry, write
from tests.ledger.test_rollups import NOON, add, roll

PARTS = (
    Slice(), Slice(since_us=NOON - 30 * HOUR_US - 99, until_us=NOON - 7), Slice(since_us=NOON - 90 * 60_000_000, until_us=NOON),
    Slice(where={"team": "research"}), Slice(where={"team": ["research", "search", "nobody"]}), Slice(where={"team": []}),
    Slice(where={"lane": "flex"}), Slice(where={"lane": ["flex", "standard"], "model": "gpt-5.5"}),
    Slice(where={"team": ["research", "search"], "model": ["smollm2", "gpt-5.5", "none"]}), Slice(where={"lane": "nowhere"}),
    Slice(where={"team": "research", "project": "agents"}), Slice(where={"project": ["agents", "none"], "lane": "flex"}),
)


@pytest.fixture
def report(place: str) -> Iterator[Reports]:
    """Some are rolled up, some wait; a run that two teams share, one that only a correction has made dear."""
    shared = [
        entry(id=f"s-{team}", call_id=f"s-{team}", run="shared", team=team, at_us=NOON - HOUR_US, cost_nanos=9_000_000)
        for team in ("research", "search")
    ]
    late = [
        entry(id="l-1", call_id="l-1", run="late", team="research", at_us=NOON - 20 * HOUR_US, cost_nanos=70_000_000, tags={"feature": "late"}),
        entry(id="l-2", kind="correction", corrects="s-search", run="shared", at_us=NOON - HOUR_US, cost_nanos=5_000_000, tokens=TokenUsage()),
    ]
    made = connect(write(place, [*entries(900, NOON, days=3), *shared]))
    roll(place)
    add(place, *late)
    yield made
    made.close()


def cost(row: Row) -> tuple[int, str]:
    return -(row.cost_nanos or 0), row.key[0] or ""


@pytest.mark.parametrize("few_hours", [0, 10_000])
@pytest.mark.parametrize("most", [3, 200])
def test_they_are_the_first_of_all(report: Reports, monkeypatch: pytest.MonkeyPatch, few_hours: int, most: int) -> None:
    """By the walk and by the look at all of them."""
    monkeypatch.setattr(dearest, "FEW_HOURS", few_hours)
    for part in PARTS:
        for name in ("run", "tag:feature"):
            rows = sorted((row for row in report.spend((name,), part).rows if row.key[0] is not None), key=cost)
            found = report.dearest(name, part, most)
            assert sorted(found, key=cost) == rows[:most], (part, name)


CHEAP = {"lane": "flex", "model": "cheap"}


@pytest.mark.parametrize("where", [{"lane": "flex"}, {"model": "cheap"}, CHEAP, {**CHEAP, "team": ["search", "none"]}])
def test_cheap_ones_within_a_lane_or_a_model_are_found_by_the_walk(
    place: str, where: dict[str, str | list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many dearer ones there are outside of it."""
    monkeypatch.setattr(rolled, "dearest_query", None)
    dear = [entry(id=f"d-{n}", call_id=f"d-{n}", run=f"dear-{n}", at_us=NOON - n * HOUR_US) for n in range(40)]
    cheap = [
        entry(id=f"c-{n}", call_id=f"c-{n}", run=f"cheap-{n}", at_us=NOON - n * HOUR_US, cost_nanos=n, **CHEAP) for n in range(1, 9)
    ]
    report = connect(write(place, [*dear, *cheap]))
    roll(place)
    monkeypatch.setattr(dearest, "_MOST_NAMES", 6)
    assert [row.key[0] for row in report.dearest("run", Slice(where=where), 3)] == ["cheap-8", "cheap-7", "cheap-6"]
    report.close()


def test_what_waits_is_found_before_and_after_it_is_rolled_up(place: str, report: Reports) -> None:
    before = report.dearest("run", Slice(), 2)
    assert [row.key[0] for row in before] == ["late", "shared"]
    assert [row.cost_nanos for row in before] == [70_000_000, 23_000_000]
    roll(place)
    bare = {"uncached_nanos": 0, "cache_read_nanos": 0, "cache_write_nanos": 0, "output_nanos": 0}
    assert [of_row(row, **bare) for row in report.dearest("run", Slice(), 2)] == [of_row(row, **bare) for row in before]


def test_a_dimension_that_all_entries_have_is_one_like_any_other(report: Reports) -> None:
    assert report.dearest("model", Slice(), 2) == list(report.spend(("model",)).rows[:2])
    assert report.dearest("run", Slice(where={"run": "late"})) == list(report.spend(("run",), Slice(where={"run": "late"})).rows)
