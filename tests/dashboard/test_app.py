"""Every page opens on every ledger, on bad days too, and the filter in the address holds."""
from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import charts, data, format
from dashboard.app import PAGES
from gateway.ledger.reports import Reports, Slice
from tests.dashboard.opened import metrics, page
from tests.ledger.generate import entry, write

Look = Callable[[str], Reports]
OF_GATEWAYS = ("Budgets", "Policies", "Health")
"""Pages about what a gateway says of itself, whatever was called."""
OF_CALLS = tuple(title for title in PAGES if title not in OF_GATEWAYS)


@pytest.mark.parametrize("title", PAGES)
@pytest.mark.parametrize("which", ["empty", "one", "busy"])
def test_every_page_opens(look: Look, which: str, title: str) -> None:
    """Without an exception, and an empty ledger says how to fill it."""
    look(which)
    test = page(title)
    assert not test.error
    shown = " ".join(code.value for code in test.code)
    assert ("curl" in shown) == (which == "empty" and title in OF_CALLS)
    assert ("tollway up" in shown) == (title in OF_GATEWAYS)     # none of these ledgers has a gateway


@pytest.mark.parametrize(("tz", "last"), [("Europe/Berlin", ""), ("Asia/Kolkata", ":30"), ("Asia/Kathmandu", ":45")])
def test_hours_of_the_heat_map_are_said_as_they_begin(look: Look, monkeypatch: pytest.MonkeyPatch, tz: str, last: str) -> None:
    """Every hour of the clock of a busy week, in its order; at half past in zones of half hours."""
    drawn: list[list[charts.Point]] = []
    grid = charts.grid
    monkeypatch.setattr(charts, "grid", lambda points, unit: drawn.append(list(points)) or grid(points, unit))
    look("busy")
    page("Latency", tz=tz)
    hours = list(dict.fromkeys(point["x"] for points in drawn for point in points if "or more" not in point["x"] and " to " not in point["x"]))
    assert hours == [f"{hour:02}{last}" for hour in range(24)]


@pytest.mark.parametrize("title", OF_CALLS)
def test_a_range_without_calls_says_when_the_last_one_was(look: Look, title: str) -> None:
    """And widens at a click."""
    look("one")
    test = page(title, range="yesterday")
    assert "The last call was on" in test.info[0].value
    test.button(key="widen").click().run()
    assert not test.exception
    assert test.session_state["range"] == "all"
    assert not any("Nothing in this range" in info.value for info in test.info)


@pytest.mark.parametrize("title", PAGES)
def test_a_ledger_that_is_not_there_yet_appears_by_itself(look: Look, tmp_path: Path, title: str) -> None:
    """The page says so and asks again; once the gateway has made it, it is shown."""
    look("missing")
    test = page(title)
    assert "There is no ledger yet" in test.warning[0].value
    assert test.session_state["away"] is True
    write(tmp_path / "ledger.db", [entry(at_us=data.now_us() - 1_000_000)])
    test.run()
    assert not test.exception
    assert not test.warning
    assert test.session_state["away"] is False


@pytest.mark.parametrize("title", PAGES)
def test_a_team_sees_its_own_whatever_the_address_says(look: Look, title: str) -> None:
    """Neither the filter nor a call's id in the address opens another team's figures."""
    report = look("busy")
    theirs = report.call_list(Slice(where={"team": "support"}), limit=1)[0]
    test = AppTest.from_function(_member, kwargs={"title": title}, default_timeout=30)
    test.query_params["team"], test.query_params["call"], test.query_params["range"] = "support", theirs["id"], "all"
    test.run()
    assert not test.exception
    shown = str([*test.metric, *test.dataframe, *test.code, *test.text, *test.json])
    assert "support" not in shown
    assert theirs["id"] not in shown
    if title == "Overview":
        assert metrics(test)["Spend"] == format.usd(report.spend((), Slice(where={"team": "search"})).total.cost_nanos)
    if title == "Calls":
        assert "There is no such call" in test.info[-1].value


def _member(title: str) -> None:
    from dashboard import app, data  # runs as a script of its own

    app.show(title, data.Viewer("search", "someone"))


@pytest.mark.parametrize("title", ["Overview", "Spend", "Calls"])
def test_a_filter_that_matches_nothing_says_so_and_is_undone_at_a_click(look: Look, title: str) -> None:
    """A model that is not there, and a team that was deleted while it was shown: both stay in the filter until then."""
    look("one")
    test = page(title, model="gone", team="deleted")
    assert "Nothing in this range for these filters" in test.info[0].value
    assert test.multiselect(key="team").value == ["deleted"]
    test.button(key="widen").click().run()
    assert not test.exception
    assert test.multiselect(key="model").value == []
    assert not any("Nothing in this range" in info.value for info in test.info)


@pytest.mark.parametrize(("name", "value"), [("model", "gpt-5.5"), ("lane", "fast")])
def test_filters_change_figures(look: Look, name: str, value: str) -> None:
    """To what the report says, and they stand in the address."""
    report = look("busy")
    test = page("Overview", **{name: value})
    assert metrics(test)["Spend"] == format.usd(report.spend((), Slice(where={name: value})).total.cost_nanos)
    assert test.query_params[name] in (value, [value])


def test_an_older_schema_says_what_to_do(look: Look, tmp_path: Path) -> None:
    """And the page goes on by itself once the gateway has been started."""
    look("one")
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("ALTER TABLE rollup RENAME TO rollup_of_the_future")
    test = page("Spend")
    assert "Starting the gateway mends it" in test.warning[0].value
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("ALTER TABLE rollup_of_the_future RENAME TO rollup")
    test.run()
    assert not test.warning


def test_a_link_from_a_figure_opens_its_calls_and_no_others(look: Look) -> None:
    """Also where it names what is no dimension."""
    report = look("busy")
    expected = report.call_list(Slice(where={"key": "key-search-1"}), limit=50)
    test = page("Calls", by="key", **{"is": "key-search-1"})
    assert list(test.dataframe[0].value["id"]) == [call["id"] for call in expected]
    assert "is nothing to group or filter by" in page("Calls", by="nonsense", **{"is": "x"}).info[0].value
