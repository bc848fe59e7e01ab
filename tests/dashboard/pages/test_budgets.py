"""Budgets as a gateway told them: who runs out first, what is left hour by hour and day by day."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard import charts, data
from dashboard.app import PAGES
from gateway.ledger.reports import Slice, connect
from tests.dashboard.opened import metrics, page
from tests.ledger import heard
from tests.ledger.generate import entries, entry, write


def today_us() -> int:
    """Its beginning, where the budgets are."""
    return data.day_range(*[data.instant(data.now_us(), heard.ZONE).date()] * 2, heard.ZONE)[0]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger of two days with a gateway's word; of each team one budget is spent twice over."""
    spent = [
        entry(id=f"s-{team}", call_id=f"s-{team}", team=team, project=None, at_us=max(today_us(), data.now_us() - 1_000_000), cost_nanos=50 * 10**9)
        for team in heard.TEAMS
    ]
    made = write(tmp_path / "ledger.db", [*entries(300, data.now_us(), days=2), *spent])
    heard.say(made)
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", made)
    return made


@pytest.mark.parametrize("title", PAGES)
def test_every_page_opens_when_a_gateway_has_told(url: str, title: str) -> None:
    test = page(title, range="7d")
    assert not test.error
    assert not any("No gateway has said" in info.value for info in test.info)


def test_several_that_are_spent_are_all_told(url: str) -> None:
    """Each is over by the same instant, now."""
    test = page("Budgets")
    assert list(metrics(test).values()).count("spent") == 3
    frame = test.dataframe[0].value
    assert list(frame["budget"])[:3] == ["a day"] * 3
    assert frame["spent $"].sum() > 150 * 2


def test_the_burn_down_goes_from_the_limit_to_what_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hours for a day, to the window's end; the last point is the limit less what was spent."""
    drawn: list[tuple[Any, Any]] = []
    lines = charts.lines
    monkeypatch.setattr(charts, "lines", lambda points, ticks, *more: drawn.append((points, ticks)) or lines(points, ticks, *more))
    test = page("Budgets")
    ((points, ticks),) = drawn
    team = str(test.selectbox(key="burn").options[0]).partition(":")[0]
    spent = connect(url).spend((), Slice(since_us=today_us(), where={"team": team})).total.cost_nanos or 0
    assert points[-1]["value"] == pytest.approx(25 - spent / 1e9)
    assert len(ticks) in (23, 24, 25)
    assert [point["when"] for point in points] == ticks[: len(points)]


def test_what_rests_on_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts of unknown cost are no silent nought: neither on the page nor on the overview, nor in what is left."""
    at_us = max(today_us(), data.now_us() - 1_000_000)
    some = [entry(id=str(n), call_id=str(n), team=heard.TEAMS[0], run="r", at_us=at_us, status="unpriced", cost_nanos=None, held_nanos=10**9) for n in range(2)]
    url = write(tmp_path / "ledger.db", some)
    heard.say(url)
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", url)
    test = page("Budgets")
    assert any("the cost of 2 attempts is unknown" in each.value.replace("\\", "") for each in test.warning)
    frame = test.dataframe[0].value
    assert set(frame[frame["team"] == heard.TEAMS[0]]["spent $"]) == {2.0}
    run = page("Runs", run="r")
    assert metrics(run)["Cost"] == "unknown"
    assert any("2 attempts of unknown cost" in each.value for each in run.code)
