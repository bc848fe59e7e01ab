"""The recorded usage of real providers costs what their price lists say, to the last digit.

Parsing payloads is the dialects' part; here the token classes of each vector are priced.
"""
from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.metering.prices import Offer, PriceBook, load
from gateway.metering.rows import Row

FILE = Path(__file__).parents[2].parent / "shared" / "reference" / "usage-vectors.jsonl"
VECTORS = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.is_file() else []
TODAY = "2026-11-15T12:00:00Z"
TTLS = {"cache_write_5m": "5m", "cache_write_1h": "1h", "cache_write_30m": "30m", "cache_write_12h": "12h", "cache_write": "unknown"}
CLASSES = {"uncached_input", "cache_read", "output_total", "prompt_total", "cache_reported", "complete", "reasoning", "anomaly", "extra_iterations", "type", "model"}
COLUMNS = {"input": "input", "cache_read": "cached", "output": "output"}
OWN_PRICES = {"together", "vllm", "sglang", "llamacpp", "openai_compatible"}
TIERS = {"peak": None}
"""DeepSeek's peak is a matter of the hour, which no answer names."""

needs_vectors = pytest.mark.skipif(not VECTORS, reason=f"no vectors at {FILE}")


def usage(expected: dict[str, Any]) -> TokenUsage:
    final = expected.get("complete", True)
    return TokenUsage(
        uncached=expected.get("uncached_input"), cache_read=expected.get("cache_read"),
        cache_write={TTLS[name]: count for name, count in expected.items() if name in TTLS},
        output=expected["output_total"] if final else None, reasoning=expected.get("reasoning"),
        other={name: count for name, count in expected.items() if name not in CLASSES and name not in TTLS},
        flags=(expected["anomaly"],) if "anomaly" in expected else (),
    )


def book(vector: dict[str, Any], ours: PriceBook) -> PriceBook:
    """Ours; for a self-hosted model with the vector's price list as the operator's file."""
    if vector["provider"] not in OWN_PRICES:
        return ours
    from gateway.metering.rows import Section
    rates = {COLUMNS[name]: int(Decimal(price) * 10**6) for name, price in vector["price_list"].items()}
    row = Row(id="own:row", provider=vector["provider"], model=vector["model"], rates=rates)
    return PriceBook((*ours.files, {vector["provider"]: Section(rows=(row,))}))


def priced(vector: dict[str, Any], ours: PriceBook) -> tuple[int | None, int, tuple[str, ...]]:
    """Cost, the certain part of it, and what is missing: the answer's own usage and that of further calls inside it."""
    context, payload = vector.get("context", {}), vector.get("payload")
    at = int(datetime.fromisoformat(context.get("at", TODAY)).timestamp()) * 1_000_000
    own = payload.get("usage") or {} if isinstance(payload, dict) else {}
    region = context.get("region") or (own.get("inference_geo") if vector["provider"] == "anthropic" else None)
    tier = vector["service_tier"]
    tier = "explicit" if vector.get("request", {}).get("cache_control") == "explicit" else TIERS.get(tier, tier)
    expected = vector["expected"]
    parts = [(vector["model"], usage(expected) if expected else TokenUsage())]
    parts += [(inner["model"], usage(inner)) for inner in (expected or {}).get("extra_iterations", ())]
    results = [book(vector, ours).price(Offer(vector["provider"], model, tier, region, batch=context.get("batch", False)), tokens, at)
               for model, tokens in parts]
    fees = sum(int(Decimal(fee["usd_each"]) * 10**9) * fee["count"] for fee in vector.get("fees", ()) if fee["name"] == "openrouter_byok_fee")
    missing = tuple(gap for result in results for gap in result.missing)
    costs = [result.cost_nanos for result in results if result.cost_nanos is not None]
    return (sum(costs) + fees if len(costs) == len(results) else None), sum(r.floor_nanos for r in results), missing


@pytest.fixture(scope="module")
def ours() -> PriceBook:
    return load()


@needs_vectors
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_a_vector_costs_what_it_says(vector: dict[str, Any], ours: PriceBook) -> None:
    """Known costs are exact; unknown ones stay unknown, with the certain part where the vector names it."""
    cost, floor, missing = priced(vector, ours)
    expected = vector["expected_cost_usd"]
    if expected is None:
        assert cost is None
        assert missing
        if "cost_floor_usd" in vector:
            assert floor == int(Decimal(vector["cost_floor_usd"]) * 10**9)
        return
    assert missing == ()
    exact = Decimal(expected) * 10**9
    assert exact == int(exact), "a vector finer than a nano-dollar needs another comparison"
    assert cost == int(exact)
