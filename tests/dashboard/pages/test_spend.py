"""Spend by any word equals the reports, to the nano-dollar."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from dashboard.pages.spend import SPLITS
from gateway.ledger.reports import Reports
from tests.dashboard.opened import metrics, page


@pytest.mark.parametrize("split", [split for split in SPLITS if split != "tag"])
def test_every_split_equals_the_reports(look: Callable[[str], Reports], split: str) -> None:
    report = look("busy")
    test = page("Spend")
    test.button_group(key="split").select(split).run()
    assert not test.exception
    frame, rows = test.dataframe[0].value, report.spend((split,)).rows
    assert [None if cost != cost else round(cost * 1e9) for cost in frame["cost"]] == [row.cost_nanos for row in rows]
    assert list(frame["calls"]) == [row.calls for row in rows]
    assert list(frame["cache read"]) == [row.cache_read for row in rows]


def test_a_tag_is_a_word_like_any_other(look: Callable[[str], Reports]) -> None:
    report = look("busy")
    test = page("Spend")
    test.button_group(key="split").select("tag").run()
    assert list(test.dataframe[0].value["calls"]) == [row.calls for row in report.spend(("tag:feature",)).rows]
    test.text_input(key="tag").set_value("it's").run()
    assert "A tag's name has letters" in test.info[0].value


def test_a_call_without_a_price_is_not_shown_as_free(look: Callable[[str], Reports], tmp_path: object) -> None:
    look("busy")
    test = page("Spend", range="all")
    test.button_group(key="split").select("model").run()
    frame = test.dataframe[0].value
    row = frame[frame["model"] == "brand-new-model"].iloc[0]
    assert row["cost"] != row["cost"]       # no number
    assert row["not priced"] > 0
    assert metrics(test)["Attempts"] == "5,000"
