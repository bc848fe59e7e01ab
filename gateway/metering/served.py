"""What only the request shows of how its answer is billed: the lifetime of cache writes, and a mode of caching.

Read when an answer leaves it open, which is rare, from the bytes that were sent.
"""
from __future__ import annotations

import re
from dataclasses import replace

from gateway.core.usage import TokenUsage
from gateway.metering.prices import DEFAULT_TIERS, PROVIDERS

_MARKER = b'"cache_control"'
_TTL = re.compile(rb'"ttl"\s*:\s*"(5m|1h|30m|12h)"')
_TIER = re.compile(rb'"service_tier"\s*:\s*"(\w+)"')
_SILENT = frozenset({"fireworks"})
"""Providers that serve the tier that was asked for, and do not say so."""
_EXPLICIT = "explicit"
"""DashScope's rates for prompts with cache markers; no answer names that mode."""


def tier_of(provider: str, served: str | None, sent: bytes) -> str | None:
    """The tier that the price hangs on."""
    if PROVIDERS.get(provider, provider) == "qwen" and (served or "") in DEFAULT_TIERS and _MARKER in sent:
        return _EXPLICIT
    if served is None and provider in _SILENT and (asked := _TIER.search(sent)):
        return asked[1].decode()
    return served


def with_lifetimes(usage: TokenUsage, sent: bytes) -> TokenUsage:
    """Writes of unknown lifetime under the one that the request asked for, if it asked for one only."""
    open_ttl = next((ttl for ttl in ("unknown", "30m") if usage.cache_write.get(ttl)), None)
    if open_ttl is None or (open_ttl == "30m" and len(usage.cache_write) > 1):
        return usage
    asked = {found.decode() for found in _TTL.findall(sent)}
    if sent.count(_MARKER) > len(_TTL.findall(sent)):
        asked.add("5m")
    if len(asked) != 1 or (open_ttl == "30m" and asked != {"12h"}):
        return usage
    written = dict(usage.cache_write)
    ttl = asked.pop()
    written[ttl] = written.get(ttl, 0) + written.pop(open_ttl)
    return replace(usage, cache_write=written)
