"""Rules are checked when they are made, and a refusal tells who can act on it what to do."""
from __future__ import annotations

from typing import Any

import pytest

from gateway.budgets import BudgetRule, Refused
from gateway.budgets.windows import window
from gateway.core.call import Tenant
from gateway.core.errors import BudgetExceeded

NOW_US = 1_772_000_000_000_000


@pytest.mark.parametrize("given", [{"timezone": "Mars/Olympus"}, {"limit_nanos": -1}, {"limit_nanos": 2**53}, {"window": "year"}, {"scope": "planet"}], ids=str)
def test_a_bad_rule_is_refused(given: dict[str, Any]) -> None:
    """At once, not at the first call."""
    with pytest.raises(ValueError):
        BudgetRule(**{"name": "cap", "limit_nanos": 1, **given})


@pytest.mark.parametrize(("scope", "account"), [("team", "search/cap"), ("project", "search/cap/project:web"), ("key", "search/cap/key:k1")])
def test_scopes_tell_accounts_apart(scope: Any, account: str) -> None:
    """A team's money, each project's, or each key's."""
    tenant = Tenant(team="search", project="web", key_id="k1")
    assert BudgetRule(name="cap", limit_nanos=1, scope=scope).account(tenant) == account


@pytest.mark.parametrize(("kind", "zone", "spent", "held", "text"), [
    ("total", "UTC", 10_000_000, 0, 'budget "cap" of 0.01 USD in total is spent; it does not reset: ask its owner to raise it'),
    ("month", "America/New_York", 0, 6_000_000, 'budget "cap" of 0.01 USD per month has no room: 0.00 spent and 0.006 reserved by calls under way, and this call may cost 0.005; it resets at 2026-03-01T00:00:00-05:00'),
    ("day", "UTC", 5_000_001, 0, 'budget "cap" of 0.01 USD per day has no room: 0.005000001 spent, and this call may cost 0.005; it resets at 2026-02-26T00:00:00+00:00'),
])
def test_a_refusal_names_budget_limit_and_reset(kind: Any, zone: str, spent: int, held: int, text: str) -> None:
    """It is a BudgetExceeded: 402, not to be tried again."""
    rule = BudgetRule(name="cap", limit_nanos=10_000_000, window=kind, timezone=zone)
    error = Refused(rule, spent, held, 5_000_000, window(kind, zone, NOW_US))
    assert str(error) == text
    assert isinstance(error, BudgetExceeded)
    assert (error.status, error.code, error.retry) == (402, "budget_exceeded", False)
