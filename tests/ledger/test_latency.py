"""Percentiles are exact and bars add up, in both databases."""
from __future__ import annotations

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import reports
from gateway.ledger.reports import Slice
from tests.ledger.generate import entry, write


@pytest.mark.parametrize(("times", "p50", "p95", "p99"), [
    pytest.param([7.0], 7.0, 7.0, 7.0, id="one"),
    pytest.param([1.0, 2.0], 1.0, 2.0, 2.0, id="two"),
    pytest.param([float(n) for n in range(1, 101)], 50.0, 95.0, 99.0, id="a hundred"),
    pytest.param([5.0] * 19 + [900.0], 5.0, 5.0, 900.0, id="the twentieth is slow"),
])  # fmt: skip
def test_percentiles_are_times_that_occurred(place: str, times: list[float], p50: float, p95: float, p99: float) -> None:
    report = reports.connect(write(place, (entry(id=f"a-{n}", first_token_ms=ms) for n, ms in enumerate(reversed(times)))))
    (found,) = report.latency()
    assert (found.key, found.count, found.p50, found.p95, found.p99, found.max) == (
        ("standard", "interactive"), len(times), p50, p95, p99, max(times),
    )  # fmt: skip
    report.close()


def test_what_counts_for_which_time(place: str) -> None:
    """First tokens of all that sent one; totals and pace only of answers that came to their end."""
    report = reports.connect(write(place, [
        entry(id="a-1", lane="fast", first_token_ms=100.0, total_ms=1_100.0, tokens=TokenUsage(output=101)),
        entry(id="a-2", lane="fast", first_token_ms=200.0, total_ms=9_000.0, status="cut"),
        entry(id="a-3", lane="fast", first_token_ms=None, total_ms=50.0, status="failed"),
        entry(id="a-4", lane="fast", kind="correction", corrects="a-1", first_token_ms=1.0, total_ms=1.0),
    ]))  # fmt: skip
    assert [(q.count, q.p50) for q in report.latency(("lane",))] == [(2, 100.0)]
    assert [(q.count, q.max) for q in report.latency(("lane",), of="total")] == [(1, 1_100.0)]
    assert [(q.count, q.p50) for q in report.latency(("lane",), of="per_token")] == [(1, 10.0)]
    assert report.latency(("lane",), Slice(where={"lane": "slow"})) == []
    report.close()


def test_bars_hold_every_attempt_once(place: str) -> None:
    """Below the first bound and above the last too; a value on a bound belongs to the bar above it."""
    times = [0.2, 1.0, 1.2, 1.25, 450.0, 5e6]
    report = reports.connect(write(place, (entry(id=f"a-{n}", first_token_ms=ms) for n, ms in enumerate(times))))
    found = [(bar.low_ms, bar.high_ms, bar.count) for bar in report.histogram(("lane",))]
    assert found == [(None, 1, 1), (1, 1.25, 2), (1.25, 1.6, 1), (400, 500, 1), (800_000, None, 1)]
    report.close()


def test_what_came_after_its_deadline_is_counted_by_team_and_class(place: str) -> None:
    """From bins: exact where the deadline is a bound, by share within one; a class without a deadline is in no row."""
    times = [(50.0, "interactive"), (450.0, "interactive"), (905.0, "interactive"), (905.0, "batch")]
    some = [entry(id=f"a-{n}", call_id=f"c-{n}", first_token_ms=ms, latency_class=klass) for n, (ms, klass) in enumerate(times)]
    report = reports.connect(write(place, [*some, entry(id="b", call_id="b", team="other", first_token_ms=905.0)]))
    (found,) = report.late({("search", "interactive"): 400.0, ("search", "agent"): 1.0})
    assert (found.team, found.klass, found.deadline_ms, found.count, found.late) == ("search", "interactive", 400.0, 3, 2)
    assert [one.late for one in report.late({("search", "interactive"): 950.0})] == [0]      # half of a bin, and half is even
    assert [one.late for one in report.late({("search", "interactive"): 920.0})] == [1]
    assert report.late({}) == []
    report.close()
