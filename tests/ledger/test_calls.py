"""One call as the HTTP API shows it."""
from __future__ import annotations

from gateway.core.usage import TokenUsage
from gateway.ledger.calls import call_json, summary
from tests.ledger.generate import entry


def test_a_call_has_the_documented_shape() -> None:
    """design.md section 2, field by field."""
    one = entry(
        policy_version="sha256:1", upstream_model="gpt-5.5-2026-04-01", served_tier="default", predicted_read_tokens=4_200,
        tokens=TokenUsage(uncached=120, cache_read=4_096, output=220, reasoning=64), total_ms=1_890.3, first_token_ms=412.0,
        decision=({"lane": "fast", "refused": "too dear"},),
    )  # fmt: skip
    assert call_json([one]) == {
        "id": "c-1", "team": "search", "run": None, "model": "gpt-5.5", "class": "interactive", "lane": "standard",
        "status": "ok", "policy_version": "sha256:1", "reason": "cheapest",
        "attempts": [{
            "backend": "openai", "upstream_model": "gpt-5.5-2026-04-01", "lane": "standard", "served_tier": "default",
            "status": "ok", "http_status": 200, "first_token_ms": 412.0, "total_ms": 1_890.3,
            "tokens": {"uncached": 120, "cache_read": 4_096, "cache_write": {"5m": 0, "1h": 0}, "output": 220, "reasoning": 64, "other": {}},
            "tokens_from": "provider", "cost_usd": "0.012345678", "price_rows": ["openai/gpt-5.5@2026-04-01"],
        }],
        "cost_usd": "0.012345678", "prefix": {"predicted_read": 4_200, "miss": None},
        "decision": [{"lane": "fast", "refused": "too dear"}], "receipts": [],
    }  # fmt: skip


def test_attempts_add_up_and_the_last_one_speaks_for_the_call() -> None:
    failed = entry(id="a-1", attempt=1, backend="one", status="failed", cost_nanos=0, tokens=TokenUsage())
    good = entry(id="a-2", attempt=2, backend="two", at_us=failed.at_us + 5)
    shown = call_json([good, failed])
    assert [attempt["backend"] for attempt in shown["attempts"]] == ["one", "two"]
    assert (shown["status"], shown["cost_usd"]) == ("ok", "0.012345678")


def test_one_attempt_without_a_price_leaves_the_call_without_one() -> None:
    """Unknown plus something is unknown."""
    both = [entry(id="a-1"), entry(id="a-2", attempt=2, status="unpriced", cost_nanos=None)]
    assert (call_json(both)["cost_usd"], call_json(both)["status"]) == (None, "unpriced")


def test_corrections_are_shown_inside_what_they_correct() -> None:
    """A late price fills the gap; a re-rating moves cost, tokens and the rows named."""
    first = entry(status="unpriced", cost_nanos=None, uncached_cost_nanos=None, price_rows=())
    late = entry(id="x-1", kind="correction", corrects="a-1", cost_nanos=5, uncached_cost_nanos=7, tokens=TokenUsage(), price_rows=("new",))
    again = entry(id="x-2", kind="correction", corrects="a-1", cost_nanos=-2, tokens=TokenUsage(output=-20), price_rows=())
    (attempt,) = call_json([first, late, again])["attempts"]
    assert (attempt["status"], attempt["cost_usd"], attempt["price_rows"]) == ("ok", "0.000000003", ["new"])
    assert attempt["tokens"]["output"] == 200


def test_a_summary_counts_all_attempts() -> None:
    line = summary([entry(id="a-1"), entry(id="a-2", attempt=2)])
    assert (line["attempts"], line["input_total"], line["cache_read"], line["output"]) == (2, 8_432, 8_192, 440)
    assert (line["at"], line["cost_usd"]) == ("2025-11-24T16:00:00.000+00:00", "0.024691356")
