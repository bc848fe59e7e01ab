from __future__ import annotations

import pytest

from gateway.core.usage import TokenUsage
from gateway.metering.served import tier_of, with_lifetimes

PLAIN, MARKED, HOUR = b"{}", b'{"cache_control":{"type":"ephemeral"}}', b'{"cache_control":{"type":"ephemeral","ttl" : "1h"}}'


@pytest.mark.parametrize(("provider", "served", "sent", "tier"), [
    ("qwen", None, PLAIN, None), ("qwen", None, MARKED, "explicit"), ("dashscope", "default", MARKED, "explicit"), ("openai", None, MARKED, None),
    ("fireworks", None, b'{"service_tier": "priority"}', "priority"), ("fireworks", None, PLAIN, None), ("openai", None, b'{"service_tier":"priority"}', None), ("fireworks", "flex", b'{"service_tier":"priority"}', "flex"),
])
def test_what_the_request_says_of_the_tier(provider: str, served: str | None, sent: bytes, tier: str | None) -> None:
    """It counts only with providers that do not say themselves what they served."""
    assert tier_of(provider, served, sent) == tier


@pytest.mark.parametrize(("provider", "written", "sent", "after"), [
    ("anthropic", {"unknown": 9}, PLAIN, {"unknown": 9}), ("anthropic", {"unknown": 9}, MARKED, {"5m": 9}), ("anthropic", {"unknown": 9}, HOUR, {"1h": 9}),
    ("anthropic", {"unknown": 9}, HOUR + MARKED, {"unknown": 9}), ("anthropic", {"5m": 4, "unknown": 9}, MARKED, {"5m": 13}), ("anthropic", {"5m": 4}, HOUR, {"5m": 4}),
    ("openai", {"30m": 9}, b'{"ttl":"30m"}', {"30m": 9}), ("openai", {"30m": 9}, b'{"ttl":"12h"}', {"12h": 9}), ("openai", {"30m": 9, "12h": 0}, b'{"ttl":"12h"}', {"30m": 9, "12h": 0}),
    ("moonshot", {"30m": 9}, PLAIN, {"unknown": 9}), ("moonshot", {"30m": 9}, b'{"ttl":"1h"}', {"1h": 9}), ("openai", {"30m": 9}, b'{"ttl":"12h"},{"ttl":"30m"}', {"unknown": 9}),
])
def test_writes_get_the_lifetime_that_was_asked_for(provider: str, written: dict[str, int], sent: bytes, after: dict[str, int]) -> None:
    """If the answer leaves it open and the request asked for one only; else it stays open."""
    assert with_lifetimes(provider, TokenUsage(uncached=1, cache_write=written), sent).cache_write == after
