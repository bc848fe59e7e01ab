"""A cost is a plain sum of products, and a class without a price makes it unknown, never less."""
from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.usage import TokenUsage
from gateway.metering.charge import priced, split_iterations
from gateway.metering.rows import Region, Row

RATES = {"input": 1_250_000, "cached": 125_000, "write_5m": 1_562_500, "write_1h": 2_500_000, "output": 10_000_000}
FULL = Row(id="acme/m@launch", provider="acme", model="m", rates=RATES, fees={"web_search_requests": 10**10})
MEDIA = Row(id="acme/a@launch", provider="acme", model="a", rates={**RATES, "audio_in": 32_000_000, "cached_audio_in": 5_000_000, "audio_out": 64_000_000, "image_in": 8_000_000, "cached_image_in": 2_000_000})
tokens = st.integers(0, 2_000_000)


@settings(max_examples=300, deadline=None)
@given(tokens, tokens, tokens, tokens, tokens, st.integers(0, 100), st.sampled_from([1, 3, 1_250_000]))
def test_cost_is_the_sum_of_products(u: int, c: int, w5: int, w1: int, o: int, searches: int, unit: int) -> None:
    """No token is lost or billed twice, and the only rounding goes up."""
    row = Row(id="r", provider="p", model="m", rates={k: v * unit // 1_250_000 or 1 for k, v in RATES.items()}, fees=FULL.fees)
    usage = TokenUsage(uncached=u, cache_read=c, cache_write={"5m": w5, "1h": w1}, output=o, other={"web_search_requests": searches})
    r, fee = row.rates, searches * 10**10
    picos = u * r["input"] + c * r["cached"] + w5 * r["write_5m"] + w1 * r["write_1h"] + o * r["output"] + fee
    result = priced(row, None, usage)
    assert result.cost_nanos is not None
    assert 0 <= result.cost_nanos * 1000 - picos < 1000
    afresh = usage.input_total * r["input"] + o * r["output"] + fee
    assert result.uncached_cost_nanos == -(-afresh // 1000)


counts = st.none() | st.sampled_from([0, 1]) | tokens


@settings(max_examples=300, deadline=None)
@given(counts, counts, counts, st.sets(st.sampled_from(["input", "cached", "output"])))
def test_plain_usage_costs_what_the_long_way_says(u: int | None, c: int | None, o: int | None, gone: set[str]) -> None:
    """Prompt, cached prompt and output have a short way; a region that adds nothing takes the long one."""
    row = Row(id="r", provider="p", model="m", rates={k: v for k, v in RATES.items() if k not in gone}, fees=FULL.fees)
    usage = TokenUsage(uncached=u, cache_read=c, output=o)
    short, long = priced(row, None, usage), priced(row, Region(region="x", models=("*",), num=1, den=1), usage)
    assert (short.cost_nanos, short.uncached_cost_nanos, short.missing, short.floor_nanos) == (
        long.cost_nanos, long.uncached_cost_nanos, long.missing, long.floor_nanos)  # fmt: skip
    assert short.rows == ("r",)


@settings(max_examples=200, deadline=None)
@given(tokens, tokens, tokens, st.integers(1, 30), st.integers(1, 30))
def test_a_region_multiplies_tokens_and_not_fees(u: int, c: int, o: int, num: int, den: int) -> None:
    """The surcharge is exact too."""
    usage = TokenUsage(uncached=u, cache_read=c, output=o, other={"web_search_requests": 3})
    picos = u * RATES["input"] + c * RATES["cached"] + o * RATES["output"]
    result = priced(FULL, Region(region="eu", models=("*",), num=num, den=den), usage)
    assert result.cost_nanos == -(-(picos * num + 3 * 10**10 * den) // (den * 1000))
    assert result.rows == ("acme/m@launch", f"acme@region:eux{num}/{den}")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_parts_are_taken_out_of_their_class(data: st.DataObject) -> None:
    """Audio and image tokens are billed once, at their own rate."""
    u, c, o = (data.draw(tokens) for _ in range(3))
    cached_image, cached_audio = data.draw(st.integers(0, c // 2)), data.draw(st.integers(0, c // 2))
    fresh_image, audio = data.draw(st.integers(0, u // 2)), data.draw(st.integers(0, u // 2))
    spoken = data.draw(st.integers(0, o))
    usage = TokenUsage(uncached=u, cache_read=c, output=o, other={
        "audio_in": audio, "cached_audio_in": cached_audio, "image_in": fresh_image + cached_image, "cached_image_in": cached_image, "audio_out": spoken,
    })
    r = MEDIA.rates
    picos = (
        (u - audio - fresh_image) * r["input"] + audio * r["audio_in"] + fresh_image * r["image_in"]
        + (c - cached_audio - cached_image) * r["cached"] + cached_audio * r["cached_audio_in"] + cached_image * r["cached_image_in"]
        + (o - spoken) * r["output"] + spoken * r["audio_out"]
    )
    assert priced(MEDIA, None, usage).cost_nanos == -(-picos // 1000)


@pytest.mark.parametrize(("usage", "missing", "floor"), [
    pytest.param(TokenUsage(output=5), "uncached tokens", 50_000, id="no prompt count"),
    pytest.param(TokenUsage(uncached=5), "output tokens", 6_250, id="no output count"),
    pytest.param(TokenUsage(uncached=5, output=4, flags=("output_provisional",)), "output tokens", 6_250, id="a placeholder is no count"),
    pytest.param(TokenUsage(uncached=5, output=1, cache_write={"12h": 1}), "write_12h", 16_250, id="a lifetime without a price"),
    pytest.param(TokenUsage(uncached=5, output=1, cache_write={"30m": 1}), "write_30m", 16_250, id="another provider's lifetime"),
    pytest.param(TokenUsage(uncached=5, output=1, other={"audio_in": 2}), "audio_in", 13_750, id="audio is not text"),
    pytest.param(TokenUsage(uncached=5, output=1, other={"image_out": 1}), "image_out", 6_250, id="images as output neither"),
    pytest.param(TokenUsage(uncached=5, output=1, other={"gizmos": 1}), "gizmos", 16_250, id="a unit that nobody knows"),
    pytest.param(TokenUsage(uncached=5, output=1, other={"file_search_calls": 1}), "file_search_calls", 16_250, id="a fee that the row lacks"),
    pytest.param(TokenUsage(uncached=0, output=1, flags=("cached_exceeds_prompt",)), "cached_exceeds_prompt", 10_000, id="figures that cannot be true"),
])
def test_what_has_no_price_makes_the_cost_unknown(usage: TokenUsage, missing: str, floor: int) -> None:
    """Unknown is None with a reason, and the certain part is kept."""
    result = priced(FULL, None, usage)
    assert result.cost_nanos is None
    assert result.uncached_cost_nanos is None
    assert result.missing == (missing,)
    assert result.floor_nanos == floor


def test_searches_seen_in_an_answer_cost_the_fee_where_there_is_one() -> None:
    """As those do that the provider counts; an own engine's searches, for which no row has a fee, are free."""
    told, seen = (TokenUsage(uncached=10, output=5, other={name: 2}) for name in ("web_search_requests", "web_search_items"))
    assert priced(FULL, None, seen).cost_nanos == priced(FULL, None, told).cost_nanos != priced(FULL, None, TokenUsage(uncached=10, output=5)).cost_nanos
    own = replace(FULL, fees={})
    assert priced(own, None, seen).cost_nanos == priced(own, None, TokenUsage(uncached=10, output=5)).cost_nanos


@pytest.mark.parametrize("other", [
    {"accepted_prediction": 3, "rejected_prediction": 1}, {"web_fetch_requests": 2}, {"image_in": 4}, {"audio_in": 0}, {"gizmos": 0},
], ids=str)
def test_what_is_no_money_changes_nothing(other: dict[str, int]) -> None:
    """Breakdowns of priced classes, free tools and zero counts cost nothing more."""
    usage = TokenUsage(uncached=10, output=5)
    assert priced(FULL, None, TokenUsage(uncached=10, output=5, other=other)).cost_nanos == priced(FULL, None, usage).cost_nanos


def test_writes_of_unknown_lifetime_cost_as_the_short_one() -> None:
    """A body without a split of lifetimes has short writes."""
    def cost(ttl: str) -> int | None:
        return priced(FULL, None, TokenUsage(uncached=0, output=0, cache_write={ttl: 1000})).cost_nanos
    assert cost("unknown") == cost("5m") == 1_562_500
    assert cost("1h") == 2_500_000


def test_tool_prompts_and_reported_fees_are_added() -> None:
    """Tokens beside the prompt cost as input; a provider's own fee is taken as it is."""
    usage = TokenUsage(uncached=100, output=0, other={"tool_prompt": 50, "reported_fee_nanos": 7})
    assert priced(FULL, None, usage).cost_nanos == 150 * 1250 + 7


def test_image_tokens_of_a_cached_prompt_need_their_split() -> None:
    """Image tokens over the whole prompt cannot be priced where some of it was cached and nobody says which."""
    usage = TokenUsage(uncached=10, cache_read=10, output=0, other={"image_in": 5})
    assert "image_in by cached and fresh" in priced(MEDIA, None, usage).missing


def test_more_of_a_part_than_of_its_class_is_an_error_of_the_figures() -> None:
    """It is not clamped."""
    assert priced(MEDIA, None, TokenUsage(uncached=1, output=0, other={"audio_in": 2})).missing == ("audio_in exceeds input",)


def test_iterations_become_calls_of_their_own() -> None:
    """Further calls inside an answer keep their model, also where its name has colons."""
    usage = TokenUsage(uncached=1, output=2, other={
        "web_search_requests": 1, "iteration:compaction::uncached": 7, "iteration:compaction::cache_write": 4,
        "iteration:advisor_message:us.x-v1:0:output": 9,
    })
    own, first, second = split_iterations("m", usage)
    assert own == ("m", TokenUsage(uncached=1, output=2, other={"web_search_requests": 1}))
    assert first == ("m", TokenUsage(uncached=7, cache_read=0, cache_write={"unknown": 4}, output=0))
    assert second == ("us.x-v1:0", TokenUsage(uncached=0, cache_read=0, cache_write={"unknown": 0}, output=9))
