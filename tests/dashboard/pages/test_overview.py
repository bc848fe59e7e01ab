"""The overview's figures are the reports' own."""
from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from dashboard import data, format
from gateway.ledger.reports import Reports
from tests.dashboard.opened import ZONE, metrics, page
from tests.ledger.generate import entry, write


def test_figures_equal_the_reports(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    shown, total = metrics(page("Overview")), report.spend().total
    assert shown["Spend"] == format.usd(total.cost_nanos)
    assert shown["Saved by caching"] == format.usd(total.saved_nanos)
    assert shown["Calls"] == format.count(total.calls)
    assert shown["Cache share"] == format.share(total.cache_share)
    for q in report.latency(("lane",)):
        assert shown[f"First token p95, {q.key[0]}"] == format.ms(q.p95)


def test_teams_are_listed_dearest_first(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    frame = page("Overview").dataframe[0].value
    rows = report.spend(("team",)).rows
    assert list(frame["team"]) == [row.key[0] for row in rows]
    assert [round(cost * 1e9) for cost in frame["cost"]] == [row.cost_nanos for row in rows]


def test_what_has_no_price_is_said(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    assert f"{report.spend().total.unpriced:,} of 5,000 attempts" in page("Overview").warning[0].value


@pytest.mark.parametrize(("now", "so_far", "left_days"), [
    pytest.param("2026-12-01T00:00:30", 0, 31, id="a month has just begun"), pytest.param("2027-02-15T00:00:00", 14, 14, id="February"),
    pytest.param("2028-02-29T12:00:00", 28.5, 0.5, id="its last day in a leap year"),
    pytest.param("2026-10-25T00:00:00", 24, 7 + 1 / 24, id="a day of 25 hours ahead"),
])  # fmt: skip
def test_a_month_is_foreseen_by_the_last_seven_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str, so_far: float, left_days: float
) -> None:
    """A dollar each half hour for forty days: what is spent, and 48 dollars for each day that is left, on the first as on the last."""
    now_us = data.micros(datetime.fromisoformat(now).replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC))
    half_hours = range(now_us - 40 * data.DAY_US, now_us, data.HOUR_US // 2)
    some = [entry(id=f"{at}", call_id=f"{at}", at_us=at, cost_nanos=10**9) for at in half_hours]
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", write(tmp_path / "ledger.db", some))
    monkeypatch.setattr(data, "now_us", lambda: now_us)
    shown = metrics(page("Overview", range="7d"))
    (foreseen,) = (value for label, value in shown.items() if label.startswith("Forecast for"))
    assert float(foreseen.lstrip("$").replace(",", "")) == pytest.approx(48 * (so_far + left_days), abs=2)
