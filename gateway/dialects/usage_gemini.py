"""Token counts of Google's APIs: generateContent (also on Vertex) and interactions.

Cached tokens stand inside the prompt count, thoughts and tool results beside the others; where prompt + candidates is the
total already, the candidates hold the thoughts. Modalities are split by lists that include cached tokens, so fresh audio
is the prompt's less the cache's. Streams repeat running totals.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core.usage import TokenUsage
from gateway.dialects.counts import Counters, part

Raw = Mapping[str, Any]
_NAMES = {
    "usageMetadata": ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount",
                      "toolUsePromptTokenCount", "totalTokenCount"),
    "usage": ("total_input_tokens", "total_cached_tokens", "total_output_tokens", "total_thought_tokens",
              "total_tool_use_tokens", "total_tokens"),
}
"""Counters of the two APIs: prompt, cached, candidates, thoughts, tool results, total."""
_LISTS = {
    "prompt": ("promptTokensDetails", "input_tokens_by_modality"),
    "cached": ("cacheTokensDetails", "cached_tokens_by_modality"),
    "output": ("candidatesTokensDetails", "output_tokens_by_modality"),
}


def find(document: Raw) -> Raw | None:
    """The usage object of a chunk or an answer, with the searches that are charged by number."""
    if raw := part(document, "usageMetadata"):
        return {**raw, "searches": _searches(document) or None}
    raw = part(document, "usage")
    return raw if "total_input_tokens" in raw else None


def usage(raw: Raw) -> TokenUsage:
    counters = Counters()
    names = _NAMES["usage" if "total_input_tokens" in raw else "usageMetadata"]
    prompt, cached, candidates, thoughts, tools, total = (counters.take(raw, name) for name in names)
    if prompt is None:
        return TokenUsage(flags=tuple(counters.flags))
    inside = bool(thoughts) and total is not None and total == prompt + (candidates or 0) + (tools or 0)
    output = (candidates or 0) + (0 if inside else thoughts or 0)
    fresh = prompt - (cached or 0)
    if fresh < 0:
        counters.flags.append("cached_exceeds_prompt")
    elif total is not None and total != prompt + output + (tools or 0):
        counters.flags.append("total_differs_from_sum")
    other = dict(_other(counters, raw))
    if tools:
        other["tool_prompt"] = tools
    return TokenUsage(
        uncached=max(fresh, 0), cache_read=cached if fresh >= 0 else prompt, output=output, reasoning=thoughts, other=other,
        flags=tuple(counters.flags),
    )


def model(document: Raw) -> str | None:
    found = document.get("modelVersion") or document.get("model")
    return found if isinstance(found, str) else None


def tier(document: Raw) -> str | None:
    """The tier that was served: the Gemini API and Vertex name it in different members of the usage."""
    raw = part(document, "usageMetadata")
    found = raw.get("serviceTier") or raw.get("trafficType") or document.get("service_tier")
    return found.lower() if isinstance(found, str) else None


def _other(counters: Counters, raw: Raw) -> Iterator[tuple[str, int]]:
    prompt, cached, output = (_by_modality(counters, raw, names) for names in _LISTS.values())
    parts = {
        "audio_in": prompt.get("audio", 0) - cached.get("audio", 0), "cached_audio_in": cached.get("audio", 0),
        "image_in": prompt.get("image", 0), "cached_image_in": cached.get("image", 0),
        "audio_out": output.get("audio", 0), "image_out": output.get("image", 0),
        "web_search_requests": counters.take(raw, "searches") or 0,
    }
    if parts["audio_in"] < 0:
        counters.flags.append("cached_audio_exceeds_audio")
    return ((name, count) for name, count in parts.items() if count > 0)


def _by_modality(counters: Counters, raw: Raw, names: tuple[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in raw.get(names[0]) or raw.get(names[1]) or ():
        if isinstance(each, Mapping):
            kind = str(each.get("modality")).lower()
            found[kind] = found.get(kind, 0) + (counters.take(each, "tokenCount") or counters.take(each, "tokens") or 0)
    return found


def _searches(document: Raw) -> int:
    """What is charged: each query, and up to Gemini 2 the prompt that led to some."""
    queries = sum(
        len(part(each, "groundingMetadata").get("webSearchQueries") or ())
        for each in document.get("candidates") or () if isinstance(each, Mapping)
    )
    return min(queries, 1) if (model(document) or "").startswith(("gemini-1", "gemini-2")) else queries
