"""Token counts of Anthropic Messages: cached and written tokens stand *beside* `input_tokens`, so classes only get new names.

With `iterations` the executor's classes are the sums over the `message` entries (one version of the provider's page says
the top level covers only the first of them). Entries that the top level leaves out, `compaction` and `advisor_message`,
are billed too, each at its own model: they go to `other` as `iteration:TYPE:MODEL:CLASS`.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gateway.core.outcome import Diagnosis
from gateway.core.usage import TokenUsage
from gateway.dialects import counts
from gateway.dialects.counts import Counters, part
from gateway.dialects.openai_usage import by_lifetime

Raw = Mapping[str, Any]
_LONGEST = 60
_TOOLS = frozenset({"web_search_requests", "web_fetch_requests", "code_execution_requests", "tool_search_requests"})
_MOST_TOOLS = 20
_EXECUTOR = ("message", "fallback_message")
_CLASSES = (
    ("input_tokens", "uncached"),
    ("cache_read_input_tokens", "cache_read"),
    ("cache_creation_input_tokens", "cache_write"),
    ("output_tokens", "output"),
)


def diagnosis(message: Raw) -> Diagnosis | None:
    """What an answer says of a cache that missed; None: nothing, or not yet."""
    found = part(part(message, "diagnostics"), "cache_miss_reason")
    reason, tokens = found.get("type"), found.get("cache_missed_input_tokens")
    if not isinstance(reason, str):
        return None
    return Diagnosis(reason[:_LONGEST], tokens if type(tokens) is int and tokens >= 0 else None)


def usage(raw: Raw) -> TokenUsage:
    counters = Counters()
    uncached = counters.take(raw, "input_tokens")
    cached = counters.take(raw, "cache_read_input_tokens")
    written = by_lifetime(counters, raw)
    output = counters.take(raw, "output_tokens")
    other = dict(_tools(counters, part(raw, "server_tool_use")))
    rounds = [each for each in raw.get("iterations") or () if isinstance(each, Mapping)]
    if rounds:
        other.update(_extra(counters, rounds))
        sums = _sums(counters, [each for each in rounds if each.get("type") in _EXECUTOR])
        if sums and (sums["uncached"], sums["cache_read"], sums["output"]) != (uncached, cached or 0, output):
            counters.flags.append("iterations_differ_from_total")
            uncached, cached, output = sums["uncached"], sums["cache_read"], sums["output"]
            if sums["cache_write"] > sum(written.values()):
                written["unknown"] = written.get("unknown", 0) + sums["cache_write"] - sum(written.values())
    return TokenUsage(
        uncached=uncached, cache_read=cached, cache_write=written, output=output,
        reasoning=counters.take(part(raw, "output_tokens_details"), "thinking_tokens"), other=other,
        flags=tuple(counters.flags),
    )


def tier(raw: Raw) -> str | None:
    """What was served: `standard`, `priority`, `batch`, and `standard+fast` where `speed` says so."""
    served = raw.get("service_tier")
    served = served if isinstance(served, str) else None
    return f"{served or 'standard'}+fast" if raw.get("speed") == "fast" else served


def region(raw: Raw) -> str | None:
    """Where it was served, as far as it says."""
    found = raw.get("inference_geo")
    return found if isinstance(found, str) and found != "not_available" else None


def _tools(counters: Counters, raw: Raw) -> Iterator[tuple[str, int]]:
    """What the provider's own tools took; one that nobody knows here makes the cost unknown, for it may be billed."""
    for told in islice(raw, _MOST_TOOLS):
        if calls := counters.take(raw, told):
            yield (told if told in _TOOLS else f"tool:{counts.name(told)}"), calls


def _sums(counters: Counters, rounds: Sequence[Raw]) -> dict[str, int]:
    if not rounds:
        return {}
    return {ours: sum(counters.take(each, name) or 0 for each in rounds) for name, ours in _CLASSES}


def _extra(counters: Counters, rounds: Sequence[Raw]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in rounds:
        if each.get("type") in _EXECUTOR:
            continue
        for name, ours in _CLASSES:
            if tokens := counters.take(each, name):
                key = f"iteration:{each.get('type')}:{each.get('model') or ''}:{ours}"
                found[key] = found.get(key, 0) + tokens
    return found
