"""What attempts cost whose process died under them."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.orphans import pricing
from gateway.settings import load
from tests.build import PRICES
from tests.ledger.generate import entry

CONFIG = """
prices: [p.toml]
backends:
  b:
    dialect: openai
    url: http://127.0.0.1:9/v1
    provider: test
    models: [m-1]
    lanes: {standard: {}, fast: {service_tier: priority}}
"""


@pytest.fixture
def price(tmp_path: Path) -> Callable[[Entry], Entry]:
    (tmp_path / "p.toml").write_text(PRICES)
    (tmp_path / "tollway.yaml").write_text(CONFIG)
    return pricing(load(tmp_path / "tollway.yaml", {}))


@pytest.mark.parametrize(("fields", "cost_nanos"), [
    pytest.param({"lane": "standard"}, 1_000 * 2_000 + 50 * 10_000, id="the lane's tier is the provider's default"),
    pytest.param({"lane": "fast"}, 1_000 * 4_000 + 50 * 20_000, id="the lane asks for a dearer tier"),
    pytest.param({"lane": "gone"}, 1_000 * 2_000 + 50 * 10_000, id="a lane that the settings have no more"),
    pytest.param({"upstream_model": "other"}, None, id="no row: unknown, not free"),
])  # fmt: skip
def test_an_orphan_costs_what_the_book_says(price: Callable[[Entry], Entry], fields: dict[str, str], cost_nanos: int | None) -> None:
    """Estimated input and the output noted last, at the rates of the lane it had been sent down."""
    known = {"backend": "b", "lane": "standard", "provider": "test", "upstream_model": "m-1", **fields}
    orphan = entry(status="orphaned", tokens=TokenUsage(uncached=1_000, output=50), cost_nanos=None, price_rows=(), **known)
    found = price(orphan)
    assert (found.cost_nanos, bool(found.price_rows)) == (cost_nanos, cost_nanos is not None)
    assert (found.status, found.tokens) == ("orphaned", orphan.tokens)
