"""What is worth telling is found in the sums, and nothing else is."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.alerts import rules
from gateway.alerts.rules import Bounds
from gateway.core.usage import TokenUsage
from gateway.ledger.budget_use import Limit
from gateway.ledger.days import HOUR_US
from gateway.ledger.reports import Reports
from tests.ledger.generate import entry

NOW = 1_764_072_000_000_000     # 2025-11-25 12:00 UTC
CAP = Limit(team="search", name="cap", limit_nanos=10 * 10**9, window="month", tz="UTC")
Make = Callable[[list[Any]], Reports]


def spent(*dollars: float, team: str = "search", ago_us: int = HOUR_US // 2) -> list[Any]:
    return [
        entry(id=f"{team}-{ago_us}-{n}", call_id=f"c-{team}-{ago_us}-{n}", team=team, at_us=NOW - ago_us, cost_nanos=int(usd * 1e9))
        for n, usd in enumerate(dollars)
    ]


@pytest.mark.parametrize(("dollars", "level"), [(4.99, None), (5, 50), (7.9, 50), (8, 80), (10, 100), (25, 100)])
def test_a_budget_tells_the_highest_level_that_it_reached(ledger: Make, dollars: float, level: int | None) -> None:
    found = list(rules.budgets(ledger(spent(dollars)), [CAP], Bounds(), NOW))
    assert [alert.id.rpartition("/")[2] for alert in found] == ([] if level is None else [str(level)])
    if level == 100:
        assert "resets 01 Dec 00:00 UTC" in found[0].text


def test_unknown_costs_are_told(ledger: Make) -> None:
    """A budget that is reached by what was held says so, and so does an hour that left something out."""
    unknown = [entry(id=f"u-{n}", call_id=f"u-{n}", at_us=NOW - 1, status="unpriced", cost_nanos=None, held_nanos=3 * 10**9) for n in range(2)]
    (alert,) = rules.budgets(ledger(unknown), [CAP], Bounds(), NOW)
    assert alert.text == "$6.00 of $10.00 this month; the cost of 2 attempts is unknown and counts with the $6.00 held for it; it resets 01 Dec 00:00 UTC."
    quiet = [e for hours in range(2, 30) for e in spent(2, ago_us=hours * HOUR_US)]
    (jump,) = rules.spend(ledger([*quiet, *spent(9), *unknown]), Bounds(), NOW)
    assert jump.text.endswith("3 calls. The cost of 2 attempts is unknown and not among it.")


def test_a_jump_is_told_against_the_teams_own_hours(ledger: Make) -> None:
    quiet = [e for hours in range(2, 30) for e in spent(2, ago_us=hours * HOUR_US)]
    assert list(rules.spend(ledger([*quiet, *spent(3)]), Bounds(), NOW)) == []
    (alert,) = rules.spend(ledger([*quiet, *spent(9)]), Bounds(), NOW)
    assert (alert.team, "$9.00" in alert.text, "$2.00" in alert.text) == ("search", True, True)
    assert list(rules.spend(ledger(spent(900)), Bounds(), NOW)) == []       # nothing to compare with


def test_a_cache_that_stops_to_hit_names_what_is_new(ledger: Make) -> None:
    def calls(name: str, ago_us: int, tokens: TokenUsage, **over: object) -> list[Any]:
        return [entry(id=f"{name}-{n}", call_id=f"{name}-{n}", at_us=NOW - ago_us, tokens=tokens, **over) for n in range(20)]

    hit, miss = TokenUsage(uncached=1_000, cache_read=9_000), TokenUsage(uncached=10_000)
    before = calls("old", 5 * HOUR_US, hit, client="app/1.0")
    after = calls("new", HOUR_US // 2, miss, client="app/1.1", miss={"kind": "timestamp"}, predicted_read_tokens=9_000)
    (alert,) = rules.cache(ledger([*before, *after]), Bounds(), NOW)
    assert "0 % of prompt tokens" in alert.text
    assert "timestamp 20 times" in alert.text
    assert "app/1.1" in alert.text
    assert list(rules.cache(ledger(before), Bounds(), NOW)) == []


def test_late_first_tokens_are_told_by_lane(ledger: Make) -> None:
    some = [entry(id=f"a-{n}", call_id=f"c-{n}", at_us=NOW - 1, lane="fast", first_token_ms=900.0) for n in range(20)]
    report = ledger(some)
    assert [a.title for a in rules.latency(report, Bounds(first_token_p95_ms={"fast": 500}), NOW)] == ["lane fast: first tokens are late"]
    assert list(rules.latency(report, Bounds(first_token_p95_ms={"fast": 1_000, "flex": 1}), NOW)) == []
