"""Conservation over a million usage payloads: input is the sum of its classes, whoever reports it and in whichever shape."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.dialects import anthropic_usage, openai_usage, usage_bedrock, usage_gemini

Made = tuple[dict[str, Any], int, int, int, int]
"""A payload, and what is true of it: prompt, read, written, output."""
_MILLION = 1_000_000


def _numbers(rng: random.Random) -> tuple[int, int, int, int, int]:
    """Uncached, read, two writes, output, from one draw of 100 bits: in turn small, large, and nothing at all."""
    bits = rng.getrandbits(100)
    mask = (0x3F, 0xFFFFF, 0)[bits % 3]
    return (bits >> 2) & 0xFFFFF & (mask or 0xFFFFF), (bits >> 22) & mask, (bits >> 42) & mask & 0xFFFF, (bits >> 60) & mask & 0xFFFF, (bits >> 78) & 0xFFFFF


def chat(rng: random.Random) -> Made:
    """OpenAI chat: all classes inside the prompt."""
    fresh, read, written, _, out = _numbers(rng)
    prompt = fresh + read + written
    details = {"cached_tokens": read, "cache_write_tokens": written}
    return {"prompt_tokens": prompt, "completion_tokens": out, "total_tokens": prompt + out, "prompt_tokens_details": details}, prompt, read, written, out


def responses(rng: random.Random) -> Made:
    """OpenAI responses: writes split by lifetime."""
    fresh, read, short, long, out = _numbers(rng)
    prompt, split = fresh + read + short + long, {"ttl_30m_tokens": short, "ttl_12h_tokens": long}
    details = {"cached_tokens": read, "cache_write_tokens": short + long, "cache_write_tokens_details": split}
    raw = {"input_tokens": prompt, "output_tokens": out, "total_tokens": prompt + out, "input_tokens_details": details}
    return raw, prompt, read, short + long, out


def deepseek(rng: random.Random) -> Made:
    fresh, read, _, _, out = _numbers(rng)
    raw = {"prompt_tokens": fresh + read, "completion_tokens": out, "prompt_cache_hit_tokens": read, "prompt_cache_miss_tokens": fresh}
    return raw, fresh + read, read, 0, out


def qwen(rng: random.Random) -> Made:
    """Anthropic's write counters inside OpenAI's details, the split short of the total."""
    fresh, read, short, rest, out = _numbers(rng)
    prompt = fresh + read + short + rest
    details = {"cached_tokens": read, "cache_creation_input_tokens": short + rest, "cache_creation": {"ephemeral_5m_input_tokens": short}}
    return {"prompt_tokens": prompt, "completion_tokens": out, "prompt_tokens_details": details}, prompt, read, short + rest, out


def xai(rng: random.Random) -> Made:
    """Reasoning beside the completion, proved by the total."""
    fresh, read, thought, _, out = _numbers(rng)
    prompt = fresh + read
    raw = {
        "prompt_tokens": prompt, "completion_tokens": out, "total_tokens": prompt + out + thought,
        "prompt_tokens_details": {"cached_tokens": read}, "completion_tokens_details": {"reasoning_tokens": thought},
    }  # fmt: skip
    return raw, prompt, read, 0, out + thought


def messages(rng: random.Random) -> Made:
    """Anthropic: classes stand beside each other."""
    fresh, read, short, long, out = _numbers(rng)
    raw = {
        "input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": short + long, "output_tokens": out,
        "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
    }  # fmt: skip
    return raw, fresh + read + short + long, read, short + long, out


def converse(rng: random.Random) -> Made:
    fresh, read, short, long, out = _numbers(rng)
    details = [{"ttl": "1h", "inputTokens": long}, {"ttl": "5m", "inputTokens": short}]
    raw = {"inputTokens": fresh, "cacheReadInputTokens": read, "cacheWriteInputTokens": short + long, "outputTokens": out, "cacheDetails": details}
    return raw, fresh + read + short + long, read, short + long, out


def gemini(rng: random.Random) -> Made:
    fresh, read, thought, _, out = _numbers(rng)
    prompt = fresh + read
    raw = {
        "promptTokenCount": prompt, "cachedContentTokenCount": read, "candidatesTokenCount": out, "thoughtsTokenCount": thought,
        "totalTokenCount": prompt + out + thought,
    }  # fmt: skip
    return raw, prompt, read, 0, out + thought


SHAPES: dict[Callable[[random.Random], Made], Callable[[Any], TokenUsage]] = {
    chat: openai_usage.usage, responses: openai_usage.usage, deepseek: openai_usage.usage, qwen: openai_usage.usage, xai: openai_usage.usage,
    messages: anthropic_usage.usage, converse: usage_bedrock.usage, gemini: usage_gemini.usage,
}  # fmt: skip


def _broken(make: Callable[[random.Random], Made], read_usage: Callable[[Any], TokenUsage], count: int) -> Iterator[str]:
    rng = random.Random(make.__name__)
    for _ in range(count):
        raw, prompt, read, written, out = make(rng)
        usage = read_usage(raw)
        uncached, cached = usage.uncached or 0, usage.cache_read or 0
        if (uncached + cached + usage.written, cached, usage.written, usage.output) != (prompt, read, written, out) or usage.flags:
            yield f"{raw} -> {usage}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_input_is_the_sum_of_its_classes(make: Callable[[random.Random], Made]) -> None:
    """125,000 payloads of each of eight shapes: uncached + read + written is the prompt, no token is lost or counted twice."""
    assert next(_broken(make, SHAPES[make], _MILLION // len(SHAPES)), None) is None


@pytest.mark.parametrize("make", [chat, responses, deepseek, qwen], ids=lambda make: make.__name__)
def test_a_sum_that_cannot_be_is_flagged(make: Callable[[random.Random], Made]) -> None:
    """Parts above the whole: nothing is negative, and a flag says so; such usage is never priced silently."""
    rng = random.Random(1)
    for _ in range(2_000):
        raw, prompt, read, written, _ = make(rng)
        if not read + written:
            continue
        name = "prompt_tokens" if "prompt_tokens" in raw else "input_tokens"
        usage = SHAPES[make]({**raw, name: (read + written) * 9 // 10, "total_tokens": None})
        assert usage.flags, (prompt, usage)
        assert all(number >= 0 for number in (usage.uncached or 0, usage.cache_read or 0, usage.written))
