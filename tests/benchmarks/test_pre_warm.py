"""Writing ahead pays where mornings are alike, and costs next to nothing where they are not."""
from __future__ import annotations

import pytest

from benchmarks.pre_warm import MORNINGS, ROWS, Life, day, prices_of, run

SHORT, LONG = Life("5m", 300.0, 10.0), Life("1h", 3_600.0, 16.0)


@pytest.mark.parametrize(("traffic", "klass", "together"), ROWS)
def test_it_never_loses_much(traffic: str, klass: str, together: bool) -> None:
    assert run(traffic, klass, together=together, seeds=30).sum <= 1.02


def test_it_pays_where_many_come_at_once() -> None:
    """Their waiting, or their writes."""
    assert run("ten at once", "interactive", together=True, seeds=5).sum < 0.4
    assert run("ten at once", "batch", together=False, seeds=5).sum < 0.25
    assert run("ten at once", "batch", together=True, seeds=5).written == 0


@pytest.mark.parametrize(("came", "ahead", "together", "usd", "wait_s"), [
    pytest.param([0.0, 1.0, 9.0], None, True, 7.7, 5.0 + 4.0, id="one writes, one waits, one reads"),
    pytest.param([0.0, 1.0, 9.0], None, False, 15.1, 10.0, id="two write"),
    pytest.param([0.0, 200.0, 450.0], None, True, 7.7, 5.0, id="each read renews it"),
    pytest.param([0.0, 301.0], None, True, 15.0, 10.0, id="it runs out"),
    pytest.param([0.0, 1.0], "short", True, 10.2, 0.0, id="written ahead"),
    pytest.param([239.0, 538.0], "short", True, 10.2, 0.0, id="read in time"),
    pytest.param([240.0], "short", True, 17.5, 5.0, id="and not"),
    pytest.param([3_539.0, 7_000.0], "long", True, 16.2, 0.0, id="for an hour, and another from each read on"),
    pytest.param([-59.0], "short", True, 10.1, 4.0, id="who comes while it is written waits"),
])  # fmt: skip
def test_what_a_day_costs(came: list[float], ahead: str | None, together: bool, usd: float, wait_s: float) -> None:
    price = prices_of("claude-sonnet-4-6")
    price = type(price)(0.1, (SHORT._replace(write_usd=7.5), LONG))
    life = {"short": SHORT, "long": LONG, None: None}[ahead]
    assert day(came, price, life, together=together) == pytest.approx((usd, wait_s))


def test_all_traffic_is_run() -> None:
    assert {traffic for traffic, _, _ in ROWS} == set(MORNINGS)
