"""Cache figures are the reports' own; predicted stands beside real."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from dashboard import format
from dashboard.pages.caching import SPLITS
from gateway.ledger.reports import Reports
from tests.dashboard.opened import metrics, page


@pytest.mark.parametrize("split", SPLITS)
def test_shares_and_predictions_equal_the_reports(look: Callable[[str], Reports], split: str) -> None:
    report = look("busy")
    test = page("Caching")
    test.button_group(key="cache_split").select(split).run()
    assert not test.exception
    rows = report.cache((split,)).rows
    predicted, sums = test.dataframe[0].value, test.dataframe[-1].value
    assert list(predicted["predicted tokens"]) == [row.predicted_read for row in rows if row.expected]
    assert list(predicted["read tokens"]) == [row.expected_read for row in rows if row.expected]
    assert list(sums["cache share"]) == pytest.approx([row.cache_share for row in rows])
    total = report.cache().total
    assert metrics(test)["Cache share"] == format.share(total.cache_share)
    assert metrics(test)["Saved"] == format.usd(total.saved_nanos)


def test_without_predictions_and_misses_it_says_so(look: Callable[[str], Reports]) -> None:
    look("one")
    test = page("Caching")
    assert "was expected" in test.info[0].value
    assert "No explained miss" in test.success[0].value
