"""Token counts of Bedrock's Converse: camel case, and cached and written tokens *beside* the input, as Anthropic has them.

`totalTokens` is left alone: how it relates to the cache's counters is not said anywhere. In a stream the counts come in
`metadata`, after the event that ends the message.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.usage import TokenUsage
from gateway.dialects.counts import Counters, part

Raw = Mapping[str, Any]


def find(document: Raw) -> Raw | None:
    """The usage object of an answer or of a stream's `metadata`, with or without that name around it."""
    raw = part(document, "usage") or part(part(document, "metadata"), "usage")
    return raw if "inputTokens" in raw else None


def usage(raw: Raw) -> TokenUsage:
    counters = Counters()
    total = counters.take(raw, "cacheWriteInputTokens")
    written: dict[str, int] = {}
    for each in raw.get("cacheDetails") or ():
        if isinstance(each, Mapping) and (tokens := counters.take(each, "inputTokens")):
            ttl = str(each.get("ttl") or "unknown")
            written[ttl] = written.get(ttl, 0) + tokens
    left = (total or 0) - sum(written.values())
    if left > 0:
        written["unknown"] = written.get("unknown", 0) + left
    elif left < 0 and total is not None:
        counters.flags.append("write_split_above_total")
    return TokenUsage(
        uncached=counters.take(raw, "inputTokens"), cache_read=counters.take(raw, "cacheReadInputTokens"), cache_write=written,
        output=counters.take(raw, "outputTokens"), flags=tuple(counters.flags),
    )


def model(document: Raw) -> str | None:
    return None    # it stands in the path


def tier(document: Raw) -> str | None:
    found = (part(document, "serviceTier") or part(part(document, "metadata"), "serviceTier")).get("type")
    return found if isinstance(found, str) else None
