"""Spend by any word equals the reports, to the nano-dollar."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from dashboard import data
from dashboard.pages import spend
from dashboard.pages.spend import SPLITS
from dashboard.view import view
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


def test_names_and_the_others_add_up_to_the_whole(look: Callable[[str], Reports], monkeypatch: pytest.MonkeyPatch) -> None:
    """At each day, to the nano-dollar, also where most entries have no such value."""
    report = look("busy")
    monkeypatch.setattr(spend, "TOP", 2)
    now = view("all", "UTC", {}, data.now_us())
    sums = report.spend(("day",), now.part)
    for by in ("team", "model", "run", "tag:feature"):
        rows = report.dearest(by, now.part)
        points = spend._over_time(now, by, rows, sums.rows)
        assert len({point["name"] for point in points}) == 3
        assert sum(round(point["value"] * 1e9) for point in points) == sums.total.cost_nanos
        assert sum(round(point["value"] * 1e9) for point in spend._totals(rows, sums.total)) == sums.total.cost_nanos
