"""Derived figures of one row."""
from __future__ import annotations

from gateway.ledger.measures import MEASURES, Row


def test_a_row_has_a_field_for_every_measure() -> None:
    assert set(MEASURES) | {"key"} == set(Row.__dataclass_fields__)


def test_shares_and_savings() -> None:
    row = Row(uncached=100, cache_read=300, cache_write=100, cost_nanos=40, uncached_cost_nanos=100)
    assert (row.input_total, row.cache_share, row.saved_nanos) == (500, 0.6, 60)


def test_what_is_not_known_is_not_zero() -> None:
    """No prompt tokens: no share; no price: no cost and no saving."""
    row = Row()
    assert (row.cache_share, row.saved_nanos) == (None, None)
    assert row.json()["cost_usd"] is None


def test_json_names_the_key_by_dimension() -> None:
    shown = Row(key=("search", None), cost_nanos=12_345_678, uncached_cost_nanos=12_345_678).json(("team", "run"))
    assert (shown["team"], shown["run"], shown["cost_usd"], shown["saved_usd"]) == ("search", None, "0.012345678", "0.000000000")
