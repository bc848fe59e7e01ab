"""Rules are checked when they are made, and a refusal tells who can act on it what to do."""
from __future__ import annotations

from typing import Any

import pytest

from gateway.budgets import BudgetRule, Payer, Refused
from gateway.budgets.windows import window
from gateway.core.errors import BudgetExceeded

NOW_US = 1_772_000_000_000_000


@pytest.mark.parametrize("given", [{"timezone": "Mars/Olympus"}, {"limit_nanos": -1}, {"limit_nanos": 2**53}, {"window": "year"}, {"scope": "planet"}], ids=str)
def test_a_bad_rule_is_refused(given: dict[str, Any]) -> None:
    """At once, not at the first call."""
    with pytest.raises(ValueError):
        BudgetRule(**{"name": "cap", "limit_nanos": 1, **given})


@pytest.mark.parametrize(("scope", "account"), [
    ("team", "search/cap"), ("project", "search/cap/project:web"), ("key", "search/cap/key:k1"), ("user", "search/cap/user:ann@acme%20inc"),
    ("model", "search/cap/model:m-1"), ("run", "search/cap/run:r-9"), ("tag:job", "search/cap/tag:job:nightly"), ("tag:none", None),
])
def test_scopes_tell_accounts_apart(scope: Any, account: str | None) -> None:
    """A team's money, or each project's, key's, user's, model's, run's or tag's; one that the call has not does not apply."""
    payer = Payer(team="search", project="web", key_id="k1", user="ann@acme inc", model="m-1", run="r-9", tags={"job": "nightly"})
    found = BudgetRule(name="cap", limit_nanos=1, scope=scope).account(payer)
    assert (found and found.id) == account


@pytest.mark.parametrize("scope", ["run", "tag:job"])
def test_a_call_without_a_run_or_tag_is_not_in_such_a_budget(scope: str) -> None:
    """All such calls together are nobody's run."""
    assert BudgetRule(name="cap", limit_nanos=1, scope=scope).account(Payer(team="search")) is None


@pytest.mark.parametrize(("kind", "zone", "spent", "held", "text"), [
    ("total", "UTC", 10_000_000, 0, 'budget "cap" of 0.01 USD in total is spent; it does not reset: ask its owner to raise it'),
    ("month", "America/New_York", 0, 6_000_000, 'budget "cap" of 0.01 USD per month has no room: 0.00 spent and 0.006 reserved by calls under way, and this call may cost 0.005; it resets at 2026-03-01T00:00:00-05:00'),
    ("day", "UTC", 5_000_001, 0, 'budget "cap" of 0.01 USD per day has no room: 0.005000001 spent, and this call may cost 0.005; it resets at 2026-02-26T00:00:00+00:00'),
])
def test_a_refusal_names_budget_limit_and_reset(kind: Any, zone: str, spent: int, held: int, text: str) -> None:
    """It is a BudgetExceeded: 402, not to be tried again."""
    rule = BudgetRule(name="cap", limit_nanos=10_000_000, window=kind, timezone=zone)
    account = rule.account(Payer(team="search"))
    assert account is not None
    error = Refused(account, spent, held, 5_000_000, window(kind, zone, NOW_US))
    assert str(error) == text
    assert isinstance(error, BudgetExceeded)
    assert (error.status, error.code, error.retry) == (402, "budget_exceeded", False)
