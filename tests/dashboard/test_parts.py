"""Tables hold what the reports say; downloads hold it to the nano-dollar."""
from __future__ import annotations

import math

from dashboard import parts
from dashboard.data import Row


def test_a_table_row_has_every_figure_and_no_made_up_zero() -> None:
    shown = parts.figures(Row(key=("a",), calls=2, cost_nanos=None, unpriced=2))
    assert (shown["cost"], shown["saved"], shown["not priced"], shown["cache share"]) == (None, None, 2, None)
    assert math.isclose(parts.figures(Row(cost_nanos=12_345_678, uncached_cost_nanos=20_000_000))["saved"], 0.007654322)


def test_every_column_that_is_formatted_exists() -> None:
    assert set(parts.shown_as([parts.figures(Row())])) == set(parts.figures(Row()))
