from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage import TokenUsage
from gateway.dialects import openai_usage


@pytest.mark.parametrize(("raw", "expected"), [
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}, TokenUsage(uncached=100, output=7), id="no split: not reported"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 80}},
                 TokenUsage(uncached=20, cache_read=80, output=7), id="cached inside"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 30}},
                 TokenUsage(uncached=20, cache_read=50, cache_write={"30m": 30}, output=7), id="written inside"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "cost": 0.1, "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 30}},
                 TokenUsage(uncached=20, cache_read=50, cache_write={"unknown": 30}, output=7), id="OpenRouter does not say for how long"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40},
                 TokenUsage(uncached=40, cache_read=60, output=7), id="DeepSeek"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 60}, TokenUsage(uncached=40, cache_read=60, output=7), id="Kimi"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50, "cache_creation_input_tokens": 30, "cache_creation": {"ephemeral_5m_input_tokens": 20}}},
                 TokenUsage(uncached=20, cache_read=50, cache_write={"5m": 20, "unknown": 10}, output=7), id="Qwen, split short of the total"),
    pytest.param({"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 106, "completion_tokens_details": {"reasoning_tokens": 66}},
                 TokenUsage(uncached=10, output=96, reasoning=66), id="reasoning beside, proved by the total"),
    pytest.param({"prompt_tokens": 10, "completion_tokens": 96, "total_tokens": 106, "completion_tokens_details": {"reasoning_tokens": 66}},
                 TokenUsage(uncached=10, output=96, reasoning=66), id="reasoning inside"),
    pytest.param({"prompt_tokens": 8, "total_tokens": 8}, TokenUsage(uncached=8, output=0), id="embeddings"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"audio_tokens": 40, "image_tokens": 5}, "completion_tokens_details": {"audio_tokens": 3, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 2}},
                 TokenUsage(uncached=100, output=9, other={"audio_in": 40, "image_in": 5, "audio_out": 3, "rejected_prediction": 2}), id="parts"),
    pytest.param({}, TokenUsage(), id="nothing said"),
    pytest.param({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99}},
                 TokenUsage(uncached=0, cache_read=10, output=2, flags=("cached_exceeds_prompt",)), id="more cached than prompt"),
    pytest.param({"prompt_tokens": -5, "completion_tokens": 2.5}, TokenUsage(flags=("invalid_prompt_tokens", "invalid_completion_tokens")), id="impossible"),
    pytest.param({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 50}, TokenUsage(uncached=10, output=2, flags=("total_differs_from_sum",)), id="wrong total"),
    pytest.param({"prompt_tokens": 10, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 5}},
                 TokenUsage(uncached=10, output=2, reasoning=5, flags=("reasoning_above_output",)), id="more reasoning than output"),
    pytest.param({"prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 50},
                 TokenUsage(uncached=40, cache_read=60, output=7, flags=("hit_and_miss_differ_from_prompt",)), id="hit and miss do not add up"),
])
def test_usage(raw: dict[str, Any], expected: TokenUsage) -> None:
    """The same work gives the same classes, whichever relative of the shape reports it; what cannot be true is flagged."""
    assert openai_usage.usage(raw) == expected


@pytest.mark.parametrize("document", [
    {"usage": {"prompt_tokens": 1}},
    {"usage": None, "choices": [{"usage": {"prompt_tokens": 1}}]},
    {"x_groq": {"usage": {"prompt_tokens": 1}}},
])
def test_usage_is_found_in_every_place(document: dict[str, Any]) -> None:
    """At the top, in a choice, or under `x_groq`."""
    assert openai_usage.find(document) == {"prompt_tokens": 1}


@pytest.mark.parametrize("document", [{}, {"usage": None}, {"choices": []}, {"x_groq": {"usage": {"dram_cached_tokens": 5}}}, {"choices": None}])
def test_no_usage_is_none(document: dict[str, Any]) -> None:
    """Missing is not zero, and hardware counters are no usage."""
    assert openai_usage.find(document) is None


NUMBER = st.integers(-3, 200) | st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=2)


@given(st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "prompt_cache_miss_tokens"]), NUMBER),
       st.dictionaries(st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens", "cache_creation_input_tokens"]), NUMBER))
def test_no_class_is_ever_negative(raw: dict[str, Any], details: dict[str, Any]) -> None:
    """Whatever a backend sends: nothing raises, no class is negative, and classes add up to the prompt or a flag says why not."""
    usage = openai_usage.usage({**raw, "prompt_tokens_details": details, "completion_tokens_details": details})
    numbers = [usage.uncached, usage.cache_read, usage.output, usage.reasoning, *usage.cache_write.values(), *usage.other.values()]
    assert all(number is None or number >= 0 for number in numbers)
    if usage.uncached is not None and not usage.flags:
        assert usage.input_total == raw["prompt_tokens"]


SEARCH, OPENED = {"type": "web_search_call", "status": "completed", "action": {"type": "search"}}, {"type": "web_search_call", "action": {"type": "open_page"}}


@pytest.mark.parametrize(("beside", "other"), [
    ({}, {}),
    ({"output": [SEARCH, OPENED, SEARCH, {"type": "web_search_call"}, {**SEARCH, "status": "failed"}, {"type": "message"}]}, {"web_search_items": 3}),
    ({"output": [{"type": "file_search_call", "queries": []}]}, {"file_search_items": 1}),
    ({"output": [SEARCH], "tool_usage": {"web_search": {"num_requests": 2}}}, {"web_search_requests": 2}),
    ({"output": [SEARCH], "tool_usage": {"web_search": {"num_requests": 0}}}, {}),
    ({"output": [SEARCH], "tool_usage": None}, {"web_search_items": 1}),
    ({"output": [None, 5, {"type": []}, {"type": "web_search_call", "action": 3}]}, {"web_search_items": 1}),
    ({"output": 7}, {}),
])
def test_a_response_tells_what_its_tools_took(beside: dict[str, Any], other: dict[str, int]) -> None:
    """By its own count; where it gives none, by the searches in its output. Opening a page is none."""
    raw = openai_usage.of_response({"usage": {"input_tokens": 10, "output_tokens": 2}, **beside})
    assert openai_usage.usage(raw) == TokenUsage(uncached=10, output=2, other=other)
    assert openai_usage.of_response(beside) == {}
