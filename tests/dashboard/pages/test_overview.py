"""The overview's figures are the reports' own."""
from __future__ import annotations

from collections.abc import Callable

from dashboard import format
from gateway.ledger.reports import Reports
from tests.dashboard.opened import metrics, page


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
