from __future__ import annotations

from typing import Any

from rich.console import Console

from gateway.demo.bill import Bill
from gateway.demo.checks import Check
from gateway.demo.replay import Turn
from gateway.demo.show import errors, show


def row(**fields: Any) -> dict[str, Any]:
    figures = {
        "team": "assistant", "class": "interactive", "lane": "standard", "calls": 123, "uncached": 123_456, "cache_read": 9_123_456,
        "cache_write": 0, "output": 12_345, "cache_share": 0.98, "cost_usd": "0.123456789", "cost_if_uncached_usd": "1.2",
        "saved_usd": "1.076543211",
    }  # fmt: skip
    return {**figures, **fields}


def shown(bill: Bill, width: int = 80) -> str:
    console = Console(record=True, width=width)
    show(console, bill, [], [Check(name="c", ok=None, text="why not", figures={})])
    return console.export_text()


def a_bill(total: dict[str, Any]) -> Bill:
    routing = {"all_fast_usd": "2", "saved_usd": "0.5", "price_row": "r", "price_source": "a source", "how": "so"}
    times = [{"lane": "standard", "count": 123, "p50": 12_345.6, "p95": 123_456.0}]
    return Bill(rows=[row()], total=total, calls={}, first_token=times, whole_answer=times, routing=routing)


def test_eighty_columns_hold_every_figure_whole() -> None:
    text = shown(a_bill(row()))
    tables = text[: text.index("sessions:")]
    assert "…" not in text
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    for figure in ("9,123,456", "12,346 ms", "123,456 ms", "$0.123457", "98.0%"):
        assert figure in text
    assert "caching saved $1.076543 (90%)" in text
    assert "routing saved $0.500000 (25%) against $2.000000 for all-fast: so" in text
    assert "checks: skipped: why not" in text


def test_what_is_not_known_is_no_nought() -> None:
    text = shown(a_bill(row(cost_usd=None, cost_if_uncached_usd=None, saved_usd=None, cache_share=None)))
    assert "unknown" in text
    assert "$0.000000" not in text


def test_an_error_is_told_once_with_its_count() -> None:
    """The context limit is where a session may end, and no error."""
    turns = [
        Turn(session="s", team="t", number=3, code="upstream_error", message="gone"),
        Turn(session="s", team="u", number=1, code="upstream_error", message="gone too"),
        Turn(session="v", team="u", number=9, code="context_length_exceeded", message="long"),
        Turn(session="w", team="u", number=1),
    ]
    assert errors(turns) == ["error upstream_error, 2 x, first in t s turn 3: gone"]
