from __future__ import annotations

from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.dialects import anthropic_usage


@pytest.mark.parametrize(("raw", "expected"), [
    pytest.param({"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 7}, TokenUsage(uncached=20, cache_read=80, output=7), id="beside"),
    pytest.param({"input_tokens": 7, "cache_creation_input_tokens": 11840, "cache_read_input_tokens": 0, "output_tokens": 530},
                 TokenUsage(uncached=7, cache_read=0, cache_write={"unknown": 11840}, output=530), id="no split"),
    pytest.param({"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}, "output_tokens": 2},
                 TokenUsage(uncached=1, cache_write={"5m": 4, "1h": 6}, output=2), id="both lifetimes"),
    pytest.param({"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 5}, "output_tokens": 2},
                 TokenUsage(uncached=1, cache_write={"5m": 2, "1h": 5, "unknown": 3}, output=2), id="the rest is not lost"),
    pytest.param({"input_tokens": 1, "cache_creation_input_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 9}, "output_tokens": 2},
                 TokenUsage(uncached=1, cache_write={"5m": 9}, output=2, flags=("write_split_above_total",)), id="more in the split than in all"),
    pytest.param({"input_tokens": 5, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}, "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0}},
                 TokenUsage(uncached=5, output=9, reasoning=4, other={"web_search_requests": 2}), id="thinking and searches"),
    pytest.param({"input_tokens": 5, "output_tokens": 9, "server_tool_use": {"code_execution_requests": 1, "dowsing_requests": 2, "reported_fee_nanos": 9}},
                 TokenUsage(uncached=5, output=9, other={"code_execution_requests": 1, "tool:dowsing_requests": 2, "tool:reported_fee_nanos": 9}),
                 id="a tool that nobody knows is not free"),
    pytest.param({"input_tokens": 500, "cache_read_input_tokens": 0, "output_tokens": 700, "iterations": [
                    {"type": "message", "input_tokens": 500, "cache_read_input_tokens": 0, "output_tokens": 200},
                    {"type": "message", "input_tokens": 900, "cache_read_input_tokens": 500, "output_tokens": 500}]},
                 TokenUsage(uncached=1400, cache_read=500, output=700, flags=("iterations_differ_from_total",)), id="iterations are believed"),
    pytest.param({"input_tokens": 412, "output_tokens": 89, "iterations": [
                    {"type": "message", "input_tokens": 412, "output_tokens": 89},
                    {"type": "advisor_message", "model": "claude-opus-5", "input_tokens": 823, "output_tokens": 1612}]},
                 TokenUsage(uncached=412, output=89, other={"iteration:advisor_message:claude-opus-5:uncached": 823, "iteration:advisor_message:claude-opus-5:output": 1612}),
                 id="an advisor is billed by itself"),
    pytest.param({"input_tokens": -1, "output_tokens": True}, TokenUsage(flags=("invalid_input_tokens", "invalid_output_tokens")), id="impossible"),
])
def test_usage(raw: dict[str, Any], expected: TokenUsage) -> None:
    """Classes keep their counts, no written token is lost, and what cannot be true is flagged."""
    assert anthropic_usage.usage(raw) == expected


@pytest.mark.parametrize(("raw", "expected"), [
    ({}, None), ({"service_tier": "priority"}, "priority"), ({"service_tier": "standard", "speed": "fast"}, "standard+fast"),
    ({"speed": "fast"}, "standard+fast"), ({"service_tier": "standard", "speed": "standard"}, "standard"), ({"service_tier": 5}, None),
])
def test_tier(raw: dict[str, Any], expected: str | None) -> None:
    """Fast mode is in `speed`, whatever the tier says."""
    assert anthropic_usage.tier(raw) == expected
