"""What the sidebar chooses stands in the address, and what stands there is chosen."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import format
from gateway.ledger.reports import Reports, Slice
from tests.dashboard.opened import metrics, page

Look = Callable[[str], Reports]


def test_the_address_keeps_the_filter(look: Look) -> None:
    """What is chosen stands in it, so a link shows the same."""
    look("busy")
    test = page("Spend", team="search", live="1", range="30d")
    assert {name: test.query_params[name] for name in ("range", "tz", "live", "team")} == {
        "range": "30d", "tz": "Europe/Berlin", "live": "1", "team": "search",
    }  # fmt: skip
    test = page("Spend", **{"range": "30d"})
    test.multiselect(key="team").set_value(["support", "search"]).run()
    assert test.query_params["team"] == ["support", "search"]
    test.selectbox(key="tz").set_value("Asia/Kolkata").run()
    assert test.query_params["tz"] == "Asia/Kolkata"
    assert "Asia/Kolkata" in test.caption[0].value


@pytest.mark.parametrize("address", [
    {"range": "fortnight"}, {"tz": "Mars/Olympus"}, {"range": "custom", "from": "soon", "to": "later"}, {"call": "no-such"},
])  # fmt: skip
def test_nonsense_in_the_address_is_left_out(look: Look, address: dict[str, str]) -> None:
    look("one")
    page("Calls" if "call" in address else "Overview", **address)


def test_filters_change_figures(look: Look) -> None:
    """A team's figures are the reports' own for it; a team that does not exist has none, and stays shown as chosen."""
    report = look("busy")
    test = page("Overview")
    everyone = metrics(test)["Spend"]
    test.multiselect(key="team").set_value(["search"]).run()
    only = report.spend((), Slice(where={"team": "search"})).total
    assert metrics(test)["Spend"] == format.usd(only.cost_nanos) != everyone
    gone = AppTest.from_function(_overview, default_timeout=30)
    gone.query_params["team"] = "gone"
    gone.run()
    assert not gone.exception
    assert "Nothing in this range" in gone.info[0].value
    assert gone.multiselect(key="team").value == ["gone"]


def _overview() -> None:
    from dashboard import app, data  # runs as a script of its own

    app.show("Overview", data.Viewer(None))
