"""Rates by the ids that entries name are the rates by which they were priced."""
from __future__ import annotations

import pytest

from gateway.core.usage import TokenUsage
from gateway.metering import prices
from gateway.metering.named import named
from gateway.metering.prices import Offer


@pytest.mark.parametrize(("provider", "model", "region"), [("openai", "gpt-5", None), ("anthropic", "claude-sonnet-4-5", None), ("anthropic", "claude-opus-4-6", "us")])
def test_token_classes_cost_what_the_entry_cost(provider: str, model: str, region: str | None) -> None:
    book = prices.load()
    usage = TokenUsage(uncached=1_000, cache_read=50_000, output=700)
    priced = book.price(Offer(provider, model, None, region), usage, 1_764_072_000_000_000)
    rates = named(lambda: book)(priced.rows)
    assert priced.cost_nanos, priced.missing
    assert rates is not None
    assert abs(1_000 * rates["input"] + 50_000 * rates["cached"] + 700 * rates["output"] - priced.cost_nanos * 1_000) < 1_000 * 10


def test_rows_that_are_not_one_are_not_guessed() -> None:
    rates = named(prices.load)
    assert rates(()) is None
    assert rates(("nobody/knows@2020-01-01",)) is None
