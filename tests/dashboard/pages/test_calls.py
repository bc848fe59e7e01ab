"""Calls are found by what one knows of them and shown in full."""
from __future__ import annotations

from collections.abc import Callable

from gateway.ledger.reports import Reports
from tests.dashboard.opened import page


def test_the_list_is_the_reports_own(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    assert list(page("Calls").dataframe[0].value["id"]) == [call["id"] for call in report.call_list(limit=50)]


def test_search_narrows_and_says_when_nothing_matches(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    test = page("Calls")
    test.text_input(key="search").set_value("brand-new-model").run()
    assert set(test.dataframe[0].value["model"]) == {"brand-new-model"}
    assert set(test.dataframe[0].value["cost_usd"]) == {"not priced"}
    test.text_input(key="search").set_value("100% <script>").run()
    assert not test.exception
    assert "Nothing matches" in test.info[0].value
    test.text_input(key="search").set_value(report.call_list(limit=1)[0]["id"]).run()
    assert len(test.dataframe[0].value) == 1


def test_one_call_is_shown_with_attempts_and_losing_lanes(look: Callable[[str], Reports]) -> None:
    """By its id in the address, as a link brings it."""
    report = look("busy")
    retried = next(call for call in report.call_list(limit=400) if call["attempts"] == 2)
    test = page("Calls", call=retried["id"])
    assert test.code[0].value == retried["id"]
    attempts, lanes = test.dataframe[1].value, test.dataframe[2].value
    assert list(attempts["status"]) == ["failed", retried["status"]]
    assert list(lanes["lane"]) == [lane["lane"] for lane in report.call(retried["id"])["decision"]]  # type: ignore[index]
    assert "not allowed for this class" in set(lanes["refused"])
