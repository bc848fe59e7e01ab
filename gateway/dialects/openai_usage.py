"""Token counts of OpenAI chat completions and of everyone who took over that shape.

Cached and written tokens stand *inside* the prompt total, so uncached is what is left of it. Relatives differ:
DeepSeek names hits and misses at the top level, Kimi repeats `cached_tokens` there, Qwen carries Anthropic's write
counters in the details, xAI counts reasoning beside the completion (believed only where the total proves it).
`cache_write_tokens` are OpenAI's 30-minute writes, but of unknown lifetime from OpenRouter and Kimi.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from gateway.core.usage import TokenUsage
from gateway.dialects import counts
from gateway.dialects.counts import MOST, Counters, part

Raw = Mapping[str, Any]
_TOOLS = {"web_search": "web_search_requests", "file_search": "file_search_calls"}
_ITEMS = {"web_search_call": "web_search_items", "file_search_call": "file_search_items"}
_MOST_FEE_USD = 1000
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Nought = Literal[0] | None
"""A counter that would have a price of its own, or that we do not look at."""
_PROMPT_PARTS = (("audio_tokens", "audio_in"), ("image_tokens", "image_in"))
_COMPLETION_PARTS = (
    ("audio_tokens", "audio_out"),
    ("image_tokens", "image_out"),
    ("accepted_prediction_tokens", "accepted_prediction"),
    ("rejected_prediction_tokens", "rejected_prediction"),
)


class _PromptDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: Count | None = None
    audio_tokens: Nought = None
    image_tokens: Nought = None
    video_tokens: Nought = None
    text_tokens: Nought = None
    cache_write_tokens: Nought = None


class _OutputDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: Count | None = None
    audio_tokens: Nought = None
    image_tokens: Nought = None
    text_tokens: Nought = None
    accepted_prediction_tokens: Nought = None
    rejected_prediction_tokens: Nought = None


class Usual(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The counts of an answer that has nothing odd about it, as they are decoded."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


def usage(raw: Raw) -> TokenUsage:
    return _usual(raw) or _any(raw)


def _usual(raw: Raw) -> TokenUsage | None:
    try:
        return usual(msgspec.convert(raw, Usual))
    except msgspec.ValidationError:
        return None


def usual(counts: Usual) -> TokenUsage | None:
    """At a tenth of the cost of `_any`; None: look closely."""
    prompt, output = counts.prompt_tokens, counts.completion_tokens
    of_prompt, of_output = counts.prompt_tokens_details, counts.completion_tokens_details
    cached = None if of_prompt is None else of_prompt.cached_tokens
    reasoning = None if of_output is None else of_output.reasoning_tokens
    if counts.total_tokens != prompt + output or (cached or 0) > prompt or (reasoning or 0) > output:
        return None
    return TokenUsage(uncached=prompt - (cached or 0), cache_read=cached, output=output, reasoning=reasoning)


def _any(raw: Raw) -> TokenUsage:
    counters = Counters()
    prompt = _either(counters, raw, "prompt_tokens", "input_tokens")
    prompt_details = part(raw, "prompt_tokens_details") or part(raw, "input_tokens_details")
    completion_details = part(raw, "completion_tokens_details") or part(raw, "output_tokens_details")
    cached = _cached(counters, raw, prompt_details)
    written = _written(counters, raw, prompt_details)
    uncached, cached = _fresh(counters, raw, prompt, cached, sum(written.values()))
    output, reasoning = _output(counters, raw, prompt, completion_details)
    other = dict(_parts(counters, prompt_details, _PROMPT_PARTS))
    other.update(_parts(counters, completion_details, _COMPLETION_PARTS))
    if fee := _own_key_fee(raw):
        other["reported_fee_nanos"] = fee
    other.update(_tools(counters, raw))
    return TokenUsage(
        uncached=uncached, cache_read=cached, cache_write=written, output=output, reasoning=reasoning, other=other,
        flags=tuple(counters.flags),
    )


def _tools(counters: Counters, raw: Raw) -> Iterator[tuple[str, int]]:
    """What the provider's own tools took, beside the tokens; those that are not known by a fee make the cost unknown."""
    for name, used in part(raw, "tool_usage").items():
        if not isinstance(used, Mapping):
            continue
        calls = counters.take(used, "num_requests")
        if calls is None:    # image generation has token counts of its own
            calls = counters.take(used, "total_tokens")
        if calls:
            yield _TOOLS.get(name, f"tool:{name}"), calls
    yield from part(raw, "tool_items").items()
    if seconds := counters.take(raw, "prompt_audio_seconds"):    # Mistral
        yield "audio_seconds", seconds
    if calls := counters.take(raw, "num_server_side_tools_used"):    # xAI
        yield "server_tool_calls", calls


def of_response(response: Raw) -> Raw:
    """The usage of a response object and what stands beside it: what its tools took, else the calls that its output shows."""
    raw, told = part(response, "usage"), response.get("tool_usage")
    if not raw:
        return raw
    return {**raw, "tool_usage": told} if told is not None else {**raw, "tool_items": Counter(_calls(response.get("output")))}


def _calls(output: object) -> Iterator[str]:
    """The billed ones: opening a page that was found is no search of its own."""
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, Mapping) or item.get("status") == "failed":
            continue
        kind = counts.name(item.get("type")) or ""
        if kind in _ITEMS and part(item, "action").get("type", "search") == "search":
            yield _ITEMS[kind]


def _own_key_fee(raw: Raw) -> int:
    """What OpenRouter charges on top where the model is paid with the customer's own key."""
    cost = raw.get("cost")
    if raw.get("is_byok") is not True or not isinstance(cost, int | float) or not 0 <= cost < _MOST_FEE_USD:
        return 0
    return round(Decimal(repr(cost)) * 10**9)


def find(document: Raw) -> Raw | None:
    """The usage object of a chunk or an answer: at the top, else in a choice (Kimi), else under `x_groq`."""
    found = document.get("usage")
    if isinstance(found, dict):
        return found
    for choice in document.get("choices") or ():
        if isinstance(choice, dict) and isinstance(choice.get("usage"), dict):
            return choice["usage"]    # type: ignore[no-any-return]
    groq = part(document, "x_groq").get("usage")
    return groq if isinstance(groq, dict) and "prompt_tokens" in groq else None


def _either(counters: Counters, raw: Raw, *names: str) -> int | None:
    for name in names:
        if raw.get(name) is not None:
            return counters.take(raw, name)
    return None


def _cached(counters: Counters, raw: Raw, details: Raw) -> int | None:
    if details.get("cached_tokens") is not None:
        return counters.take(details, "cached_tokens")
    return _either(counters, raw, "prompt_cache_hit_tokens", "cached_tokens")


def _written(counters: Counters, raw: Raw, details: Raw) -> dict[str, int]:
    if (written := counters.take(details, "cache_write_tokens")) is not None:
        if split := part(details, "cache_write_tokens_details"):
            return _by_openai_lifetime(counters, written, split)
        foreign = "cost" in raw or "cached_tokens" in raw    # OpenRouter, Kimi: the lifetime is not said
        return {"unknown" if foreign else "30m": written}
    return by_lifetime(counters, details)


def _by_openai_lifetime(counters: Counters, total: int, split: Raw) -> dict[str, int]:
    written = {ttl: counters.take(split, f"ttl_{ttl}_tokens") or 0 for ttl in ("30m", "12h")}
    left = total - sum(written.values())
    if left < 0:
        counters.flags.append("write_split_above_total")
    return written if left <= 0 else written | {"unknown": left}


def by_lifetime(counters: Counters, raw: Raw) -> dict[str, int]:
    """Anthropic's write counters: the split, and what it leaves over of the total as `unknown`."""
    total = counters.take(raw, "cache_creation_input_tokens")
    split = part(raw, "cache_creation")
    written = {
        ttl: tokens for ttl in ("5m", "1h")
        if (tokens := counters.take(split, f"ephemeral_{ttl}_input_tokens")) is not None
    }
    left = (total or 0) - sum(written.values())
    if left > 0 or (total is not None and not written):
        written["unknown"] = left
    elif left < 0 and total is not None:
        counters.flags.append("write_split_above_total")
    return written


def _fresh(counters: Counters, raw: Raw, prompt: int | None, cached: int | None, written: int) -> tuple[int | None, int | None]:
    """(uncached, cached). More cached than prompt cannot be: flagged, and cut down so that no class is negative."""
    if prompt is None:
        return None, cached
    miss = counters.take(raw, "prompt_cache_miss_tokens")
    if miss is not None and cached is not None and miss + cached != prompt:
        counters.flags.append("hit_and_miss_differ_from_prompt")
    fresh = prompt - (cached or 0) - written
    if fresh >= 0:
        return fresh, cached
    counters.flags.append("cached_exceeds_prompt")
    return 0, None if cached is None else min(cached, prompt)


def _output(counters: Counters, raw: Raw, prompt: int | None, details: Raw) -> tuple[int | None, int | None]:
    completion = _either(counters, raw, "completion_tokens", "output_tokens")
    reasoning = counters.take(details, "reasoning_tokens")
    if reasoning is None:
        reasoning = counters.take(raw, "reasoning_tokens")
    total = counters.take(raw, "total_tokens")
    if completion is None:    # embeddings have no such counter: zero, not unknown
        absent = "completion_tokens" not in raw and "output_tokens" not in raw
        return (0 if absent and prompt is not None and total == prompt else None), reasoning
    if reasoning and total is not None and total == (prompt or 0) + completion + reasoning:
        return completion + reasoning, reasoning
    if reasoning is not None and reasoning > completion:
        counters.flags.append("reasoning_above_output")
    if total is not None and prompt is not None and total != prompt + completion:
        counters.flags.append("total_differs_from_sum")
    return completion, reasoning


def _parts(counters: Counters, details: Raw, names: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, int]]:
    for name, ours in names:
        if tokens := counters.take(details, name):
            yield ours, tokens
