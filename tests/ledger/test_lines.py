"""The ledger as a bill's lines, on every database."""
from __future__ import annotations

from gateway.core.usage import TokenUsage
from gateway.ledger import reports
from gateway.ledger.reports import Slice
from tests.ledger.generate import entry, write

DAY_US = 86_400_000_000
ROWS = ("openai/gpt-5.5@2026-04-01",)


def test_attempts_are_summed_with_their_corrections(place: str) -> None:
    """One line for what has the same labels and rows; a re-rated attempt stands under its new rows, an estimate apart."""
    usage = TokenUsage(uncached=10, cache_read=5, cache_write={"1h": 3}, output=2)
    common = {"tokens": usage, "cost_nanos": 100, "price_rows": ROWS, "served_model": "gpt-5.5-x", "served_tier": "default"}
    correction = {**common, "kind": "correction", "tokens": TokenUsage(), "price_rows": ("new",)}
    some = [
        entry(id="a-1", **common), entry(id="a-2", **common), entry(id="a-3", **{**common, "tokens_from": "estimate"}),
        entry(id="a-4", **common), entry(id="a-4~r000-x", corrects="a-4", **{**correction, "cost_nanos": 7, "price_rows": ("older",)}),
        entry(id="a-4~r001-x", corrects="a-4", **{**correction, "cost_nanos": -50}),
        entry(id="a-5", **{**common, "tokens": TokenUsage(), "cost_nanos": None}),
        entry(id="a-5-late", corrects="a-5", **{**common, "kind": "correction", "served_model": "other"}),
        entry(id="a-6", **{**common, "tokens": TokenUsage(), "cost_nanos": 0, "status": "failed"}), entry(id="a-7", **{**common, "provider": "anthropic"}),
        entry(id="a-8", **{**common, "cost_nanos": None}), entry(id="a-9", at_us=1_764_000_000_000_000 + DAY_US, **common),
    ]  # fmt: skip
    ledger = reports.connect(write(place, some))
    found = {(line.day, line.model, line.rows, line.estimated): line for line in ledger.lines("openai", Slice())}
    ledger.close()
    plain = found["2025-11-24", "gpt-5.5-x", ROWS, False]
    assert (plain.attempts, plain.unpriced, plain.cost_nanos) == (3, 1, 200)
    assert (plain.tokens["uncached"], plain.tokens["write_1h"], plain.tokens["write_5m"]) == (30, 9, 0)
    assert found["2025-11-24", "gpt-5.5-x", ("new",), False].cost_nanos == 57
    assert found["2025-11-24", "gpt-5.5-x", ROWS, True].attempts == 1
    assert found["2025-11-24", "other", ROWS, False].tokens["output"] == 2
    assert found["2025-11-25", "gpt-5.5-x", ROWS, False].attempts == 1
    assert len(found) == 5
