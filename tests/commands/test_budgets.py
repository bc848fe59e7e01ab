"""What `tollway budgets show` makes of what the gateway says."""
from __future__ import annotations

from typing import Any

import pytest

from gateway.commands.budgets import shown


def row(**fields: Any) -> dict[str, Any]:
    state = {"account": "search/cap", "team": "search", "name": "cap", "limit_nanos": 10**9, "spent_nanos": 25 * 10**7, "held_nanos": 5 * 10**8,
             "window": "month", "starts_us": 1, "ends_us": 1_775_001_600_000_000}  # fmt: skip
    return {**state, **fields}


def test_money_is_told_as_text_and_what_is_left_is_worked_out() -> None:
    """Held money is not left."""
    found = shown(row())
    assert (found["limit_usd"], found["left_usd"], found["used"], found["resets"]) == ("1.000000000", "0.250000000", 0.75, "2026-04-01 00:00")


@pytest.mark.parametrize("fields", [{"limit_nanos": 0, "spent_nanos": 0, "held_nanos": 0}, {"spent_nanos": 2 * 10**9}, {"spent_nanos": 10**9, "held_nanos": 0}])
def test_a_spent_budget_has_nothing_left(fields: dict[str, Any]) -> None:
    """A limit of 0 is spent from the start."""
    found = shown(row(**fields, ends_us=None))
    assert (found["left_usd"], found["used"] >= 1, found["resets"]) == ("0.000000000", True, None)
