"""The short cut for usual usage objects says what the long way says, or nothing."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import openai_usage

COUNT = st.one_of(st.integers(0, 9), st.integers(-2, 1 << 54), st.none(), st.sampled_from([True, "7", 3.0, 2.5]))
PROMPT = st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens", "image_tokens", "cache_write_tokens", "text_tokens"]), COUNT)
OUTPUT = st.dictionaries(st.sampled_from(["reasoning_tokens", "audio_tokens", "accepted_prediction_tokens"]), COUNT)
USAGE = st.fixed_dictionaries(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT},
    optional={
        "total_tokens": COUNT, "prompt_tokens_details": PROMPT | st.none(), "completion_tokens_details": OUTPUT | st.just(3),
        "cached_tokens": COUNT, "cost": COUNT, "usage": st.just({}),
    },
)  # fmt: skip


@given(USAGE, st.booleans())
def test_the_short_cut_agrees_with_the_long_way(raw: dict[str, object], adds_up: bool) -> None:
    if adds_up and isinstance(raw["prompt_tokens"], int) and isinstance(raw["completion_tokens"], int):
        raw["total_tokens"] = raw["prompt_tokens"] + raw["completion_tokens"]
    short = openai_usage._usual(raw)
    assert short is None or short == openai_usage._any(raw)


def test_the_usual_answer_takes_the_short_cut() -> None:
    raw = {
        "prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
        "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 64, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    }  # fmt: skip
    short = openai_usage._usual(raw)
    assert short is not None
    assert (short.uncached, short.cache_read, short.output, short.reasoning) == (86, 1920, 300, 64)
