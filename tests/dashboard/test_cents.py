"""What a page shows is what `tollway report --json` prints, to the cent and beyond."""
from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from dashboard import data
from gateway.ledger.query import answer
from gateway.ledger.reports import Reports
from tests.dashboard.opened import ZONE, page


def test_teams_cost_what_the_report_prints(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    printed = {row["team"]: Decimal(row["cost_usd"]) for row in answer(report, {"by": "team", "tz": ZONE}, data.now_us())["rows"]}
    frame = page("Overview").dataframe[0].value
    shown = {row.team: Decimal(round(row.cost * 10**9)) / 10**9 for row in frame.itertuples()}
    assert shown == printed
    assert len(printed) > 1
