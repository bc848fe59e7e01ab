"""What only the request shows of how its answer is billed: the lifetime of cache writes, a mode of caching, a tier.

Read from the bytes that were sent, and only where an answer leaves it open, which is rare.
"""
from __future__ import annotations

import re

from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.metering.prices import DEFAULT_TIERS, PROVIDERS

_MARKER = b'"cache_control"'
_TTL = re.compile(rb'"ttl"\s*:\s*"(5m|1h|30m|12h)"')
_TIER = re.compile(rb'"service_tier"\s*:\s*"(\w+)"')
_SILENT = frozenset({"fireworks"})
"""Providers that serve the tier that was asked for, and do not say so."""
_EXPLICIT = "explicit"
"""DashScope's rates for prompts with cache markers; no answer names that mode."""
_THIRTY_MINUTES = frozenset({"openai", "azure", "bedrock"})
"""Whose `cache_write_tokens` last for half an hour if the request says nothing; elsewhere it is the provider's short time."""


def tier_of(provider: str, served: str | None, sent: bytes) -> str | None:
    """The tier that the price hangs on."""
    provider = PROVIDERS.get(provider, provider)
    if provider == "qwen" and (served or "") in DEFAULT_TIERS and _MARKER in sent:
        return _EXPLICIT
    if served is None and provider in _SILENT and (asked := _TIER.search(sent)):
        return asked[1].decode()
    return served


def with_lifetimes(provider: str, usage: TokenUsage, sent: bytes) -> TokenUsage:
    """Writes whose lifetime the answer leaves open, under the one that the request asked for if that is one only."""
    written = dict(usage.cache_write)
    supposed = "30m" in written and "12h" not in written    # there was no split by lifetime
    if supposed and (provider not in _THIRTY_MINUTES or b"12h" in sent):
        written["unknown"] = written.get("unknown", 0) + written.pop("30m")
    if written.get("unknown"):
        named = _TTL.findall(sent)
        asked = {found.decode() for found in named}
        if sent.count(_MARKER) > len(named):
            asked.add("5m")
        if len(asked) == 1:
            ttl = asked.pop()
            written[ttl] = written.get(ttl, 0) + written.pop("unknown")
    return usage if written == usage.cache_write else replace(usage, cache_write=written)
