"""How far budgets are spent, and when they will be."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger.budget_use import Limit, uses
from gateway.ledger.days import DAY_US, HOUR_US
from gateway.ledger.reports import Reports, connect
from tests.ledger.generate import entry, write

NOW = 1_764_072_000_000_000     # 2025-11-25 12:00 UTC


def spent(*dollars: float, team: str = "search", ago_us: int = HOUR_US // 2) -> list[Any]:
    return [
        entry(id=f"{team}-{ago_us}-{n}", call_id=f"c-{team}-{ago_us}-{n}", team=team, at_us=NOW - ago_us, cost_nanos=int(usd * 1e9))
        for n, usd in enumerate(dollars)
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[[list[Any]], Reports]:
    return lambda some: connect(write(tmp_path / "ledger.db", some))


def test_a_budget_of_projects_is_told_by_project_and_forecast(ledger: Callable[[list[Any]], Reports]) -> None:
    some = [entry(id=f"a-{p}", call_id=p, project=p, at_us=NOW - HOUR_US, cost_nanos=n * 10**9) for p, n in (("web", 9), ("app", 1))]
    limit = Limit(team="search", name="each", limit_nanos=10 * 10**9, window="day", tz="Europe/Berlin", scope="project")
    found = uses(ledger(some), [limit], NOW)
    assert [(use.owner, round(use.share, 2)) for use in found] == [("web", 0.9), ("app", 0.1)]
    passed = NOW - found[0].since_us                 # 13 of 24 hours
    assert found[0].forecast_nanos(NOW) == 9 * 10**9 * DAY_US // passed
    assert found[0].empty_us(NOW) == NOW + passed // 9
    assert found[1].empty_us(NOW) is None


@pytest.mark.parametrize(("scope", "owner"), [("team", "search"), ("project", "web")])
def test_attempts_of_unknown_cost_count_with_what_was_held(ledger: Callable[[list[Any]], Reports], scope: str, owner: str) -> None:
    """As the budgets themselves count, and it is said; one whose cost was found later counts with that."""
    some = [
        entry(id="a", call_id="a", project="web", at_us=NOW - HOUR_US, cost_nanos=10**9),
        entry(id="b", call_id="b", project="web", at_us=NOW - HOUR_US, status="unpriced", cost_nanos=None, held_nanos=3 * 10**9),
        entry(id="c", call_id="c", project="web", at_us=NOW - HOUR_US, status="unpriced", cost_nanos=None),
        entry(id="d", call_id="d", project="web", at_us=NOW - HOUR_US, status="unpriced", cost_nanos=None, held_nanos=5 * 10**9),
        entry(id="e", call_id="d", project="web", at_us=NOW - HOUR_US, kind="rerate", corrects="d", cost_nanos=2 * 10**9),
        entry(id="f", call_id="f", project="web", at_us=NOW - 40 * DAY_US, status="unpriced", cost_nanos=None, held_nanos=7 * 10**9),
    ]
    limit = Limit(team="search", name="each", limit_nanos=10 * 10**9, window="month", tz="UTC", scope=scope)
    (use,) = uses(ledger(some), [limit], NOW)
    assert (use.owner, use.spent_nanos, use.held_nanos, use.unpriced) == (owner, 6 * 10**9, 3 * 10**9, 2)
    assert use.unknown == "the cost of 2 attempts is unknown and counts with the $3.00 held for it"
    (known,) = uses(ledger(some[:1]), [limit], NOW)
    assert (known.spent_nanos, known.unknown) == (10**9, "")
