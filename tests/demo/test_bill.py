from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from gateway.demo.bill import bill, price
from gateway.demo.show import show

FAST = "embedded/m@2025-01-01#priority"
PRICES = {"input": "0.05", "cached": "0.005", "output": "0.20"}


def row(lane: str, cost: str | None, **tokens: int) -> dict[str, Any]:
    counts = {"uncached": 0, "cache_read": 0, "cache_write": 0, "output": 0, **tokens}
    figures = {"calls": 1, "attempts": 1, "unpriced": 0, "cache_share": 0.5, "cost_if_uncached_usd": cost, "saved_usd": "0"}
    return {"team": "t", "class": "c", "lane": lane, **figures, **counts, "cost_usd": cost}


class Scripted:
    """A gateway whose ledger has these rows."""

    def __init__(self, *rows: dict[str, Any], cost: str | None, prices: Any = None, price_rows: tuple[str, ...] = (FAST,)) -> None:
        self.rows = [*rows]
        self.cost = cost
        self.prices = [{"id": FAST, "source": "tests", "prices": PRICES}] if prices is None else prices
        self.price_rows = price_rows
        self.asked: list[Any] = []

    def ask(self, method: str, path: str, **how: Any) -> Any:
        self.asked.append((path, how.get("params")))
        if path == "/tollway/admin/prices":
            return self.prices
        if path.startswith("/tollway/calls/"):
            return {"attempts": [{"price_rows": list(self.price_rows)}]}
        words = how["params"]
        assert words["tag:demo"] == "d1"
        if words["report"] == "latency":
            return {"rows": [{"lane": "fast", "count": 1, "p50": 1.5, "p95": 2.5}]}
        rows = [{**each, "call_id": f"c{n}"} for n, each in enumerate(self.rows)]
        total = row("", self.cost, **{n: sum(r[n] for r in rows) for n in ("uncached", "cache_read", "cache_write", "output")})
        return {"rows": rows, "total": {**total, "unpriced": int(self.cost is None)}}


def test_a_price_is_tokens_times_rates_rounded_up_once() -> None:
    """Exact to the nano-dollar: 3 tokens at 0.0003 dollars a million are 0.9 nanos each class, together 2."""
    rows = [{"uncached": 1, "cache_read": 1, "cache_write": 0, "output": 1}] * 3
    assert price(rows, {"input": "0.0003", "cached": "0.0002", "output": "0.0001"}) == 2
    assert price(rows, PRICES) == 3 * (50 + 5 + 200)


def test_a_class_without_a_price_has_none() -> None:
    """Unknown is not free."""
    assert price([{"uncached": 1, "cache_read": 0, "cache_write": 9, "output": 1}], PRICES) is None


def test_routing_is_the_same_tokens_at_the_fast_lanes_row() -> None:
    fast = row("fast", "0.000000450", uncached=4, cache_read=10, output=1)
    slow = row("standard", "0.000000172", uncached=4, cache_read=6, output=1)
    gateway = Scripted(fast, slow, cost="0.000000622")
    routing = bill(gateway, "d1").routing
    assert (routing["all_fast_usd"], routing["saved_usd"]) == ("0.000000880", "0.000000258")
    assert ("/tollway/admin/prices", {"model": "embedded/m"}) in gateway.asked


@pytest.mark.parametrize(
    ("fast", "changes", "reason"),
    [
        pytest.param(row("standard", "0.1", output=1), {}, "no call was answered by the fast lane", id="no fast call"),
        pytest.param(row("fast", "0.000000200", output=1), {"cost": None}, "not every call has a price", id="no price"),
        pytest.param(row("fast", "0.000000200", output=1), {"prices": []}, "not priced by one row", id="row not in force"),
        pytest.param(row("fast", "0.000000200", output=1), {"price_rows": ()}, "not priced by one row", id="no row"),
        pytest.param(row("fast", "0.000000200", output=1), {"price_rows": (FAST, "other/m@x")}, "one row", id="two rows"),
        pytest.param(row("fast", "0.000000300", output=1), {}, "does not give what the ledger has", id="another rate"),
        pytest.param(row("fast", "0.000000200", output=1, cache_write=3), {}, "no price for some class", id="no rate"),
    ],
)
def test_what_is_not_known_is_left_out_with_the_reason(fast: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    """No figure is made up."""
    found = bill(Scripted(fast, **{"cost": "0.000000200", **changes}), "d1")
    assert reason in found.routing["left_out"]
    console = Console(record=True, width=80)
    show(console, found, [], [])
    assert "against all-fast is left out" in console.export_text()
