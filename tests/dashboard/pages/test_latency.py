"""Waiting times are the reports' own, for each of the three measures."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from dashboard import format
from dashboard.pages.latency import MEASURES
from gateway.ledger.reports import Of, Reports
from tests.dashboard.opened import metrics, page


@pytest.mark.parametrize("of", MEASURES)
def test_percentiles_equal_the_reports(look: Callable[[str], Reports], of: Of) -> None:
    report = look("busy")
    test = page("Latency")
    test.button_group(key="of").select(of).run()
    assert not test.exception
    frame, found = test.dataframe[0].value, report.latency(of=of)
    shown_rows = [tuple(row) for row in frame.itertuples(index=False)]
    assert shown_rows == [(*q.key, q.count, q.p50, q.p95, q.p99, q.max, q.exact) for q in found]
    shown = metrics(test)
    for q in report.latency(("lane",), of=of):
        assert shown[f"{q.key[0]} lane, median"] == format.ms(q.p50)


def test_a_measure_that_nothing_has_says_so(look: Callable[[str], Reports], tmp_path: object) -> None:
    look("empty")
    assert page("Latency").code
