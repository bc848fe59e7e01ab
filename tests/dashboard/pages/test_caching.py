"""Cache figures are the reports' own; predicted stands beside real."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard import data, format
from dashboard.pages.caching import SPLITS
from gateway.core.usage import TokenUsage
from gateway.ledger.reports import Reports
from tests.dashboard.opened import metrics, page
from tests.ledger.generate import entry, write


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


def test_what_the_gateway_itself_asked_for_stands_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What writing ahead cost, and what the call that read it saved."""
    minute, said = 60_000_000, {"team": "t", "backend": "b", "upstream_model": "m", "status": "ok"}
    ahead = TokenUsage(uncached=9, cache_write={"1h": 8_000}, output=0)
    some = [
        entry(at_us=data.now_us() - 30 * minute, client="pre_warm", tokens=ahead, cost_nanos=48_000_000, uncached_cost_nanos=24_000_000, **said),
        entry(id="a-2", call_id="c-2", at_us=data.now_us() - 29 * minute, tokens=TokenUsage(uncached=9, cache_read=8_000, output=1), cost_nanos=3_000_000, uncached_cost_nanos=25_000_000, **said),
    ]  # fmt: skip
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", write(tmp_path / "ledger.db", some))
    test = page("Caching")
    assert not test.exception
    [row] = [dict(frame.value.iloc[0]) for frame in test.dataframe if "of use" in frame.value.columns]
    assert row == {"client": "pre_warm", "calls": 1, "cost": 0.048, "of use": 1, "looked at": 1, "saved": 0.022}
