"""Calls a minute, evenly."""
from __future__ import annotations

import pytest

from gateway.access.rate import Rates
from gateway.core.errors import RateLimited


def test_a_team_gets_its_rate_and_others_theirs() -> None:
    """Sixty a minute is one a second with a small burst; who is early is told how early."""
    now = [0.0]
    rates = Rates(lambda: now[0])
    waits = []
    for _ in range(1000):
        now[0] += 0.1
        try:
            rates.admit("a", 60)
        except RateLimited as error:
            waits.append(error.retry_after_s or 0.0)
    assert 100 <= 1000 - len(waits) <= 108
    assert 0 < min(waits) <= max(waits) <= 2
    rates.admit("b", 60)


def test_no_limit_costs_nothing() -> None:
    rates = Rates()
    for _ in range(1000):
        rates.admit("a", None)


def test_waiting_as_told_is_enough() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    rates.admit("a", 2)
    rates.admit("a", 2)
    with pytest.raises(RateLimited) as caught:
        rates.admit("a", 2)
    now[0] += (caught.value.retry_after_s or 0) + 1e-6
    rates.admit("a", 2)
