"""The price book finds the one row that applies, or says what is missing; it never falls back to another price."""
from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.usage import TokenUsage
from gateway.metering.prices import Offer, PriceBook, Rates, load

USAGE = TokenUsage(uncached=1_000, output=100)
NOW = "2026-11-15T12:00:00Z"


def us(text: str = NOW) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


@pytest.fixture(scope="module")
def ours() -> PriceBook:
    return load()


def book(folder: Path, *texts: str, built_in: bool = False) -> PriceBook:
    paths = []
    for number, text in enumerate(texts, 1):
        paths.append(folder / f"file{number}.toml")
        paths[-1].write_text(text)
    return load(paths, built_in=built_in)


def rows(of: PriceBook, provider: str, model: str, tier: str | None = None, at: str = NOW, tokens: int = 1_000, **more: object) -> tuple[str, ...]:
    return of.price(Offer(provider, model, tier, **more), TokenUsage(uncached=tokens, output=1), us(at)).rows  # type: ignore[arg-type]


@pytest.mark.parametrize(("provider", "model", "row"), [
    pytest.param("openai", "gpt-5.5", "openai/gpt-5.5@launch", id="exact"),
    pytest.param("openai", "gpt-5.5-2026-04-01", "openai/gpt-5.5@launch", id="dated with dashes"),
    pytest.param("anthropic", "claude-opus-5-5-20260901", "anthropic/claude-opus-5-5@launch", id="dated in one piece"),
    pytest.param("vertex", "claude-sonnet-4-5@20250929", "google/claude-sonnet-4-5@launch", id="dated after an at sign"),
    pytest.param("anthropic", "Claude-Opus-4.8", "anthropic/claude-opus-4-8@launch", id="another spelling"),
    pytest.param("openai", "gpt-4o-2024-05-13", "openai/gpt-4o-2024-05-13@launch", id="a dated model with a price of its own"),
    pytest.param("openai", "gpt-5.5-pro", "openai/gpt-5.5-pro@launch", id="not the shorter name"),
    pytest.param("openai", "ft:gpt-4o-2024-08-06:acme::x1", "openai/ft:gpt-4o-2024-*@launch", id="a pattern"),
    pytest.param("google", "models/gemini-2.5-pro", "google/gemini-2.5-pro@launch", id="with its path"),
    pytest.param("xai", "grok-4.7", "x-ai/grok-4.7@launch", id="another name of the provider"),
    pytest.param("azure", "gpt-4.1", "openai/gpt-4.1@launch", id="a provider that prices like another"),
    pytest.param("openrouter", "anthropic/claude-sonnet-5", "anthropic/claude-sonnet-5@launch", id="a reseller"),
])
def test_a_name_finds_its_row(ours: PriceBook, provider: str, model: str, row: str) -> None:
    """Exact name, then without a date, then patterns."""
    assert rows(ours, provider, model) == (row,)


@pytest.mark.parametrize(("provider", "model", "tier", "missing"), [
    ("openai", "gpt-5.5-turbo", None, "model openai/gpt-5.5-turbo"), ("openai", "gpt-5.55", None, "model openai/gpt-5.55"),
    ("openai", "gpt-5", "bogus", "tier bogus"), ("openai", "gpt-5.5", "auto", "tier auto"), ("anthropic", "claude-sonnet-4-6", "priority", "tier priority"),
    ("anthropic", "claude-zeta-9", None, "model anthropic/claude-zeta-9"), ("acme", "gpt-5.5", None, "model acme/gpt-5.5"),
    ("anthropic", "claude-opus-5", "fast+batch", "tier fast+batch"),
])
def test_what_no_row_covers_is_unknown(ours: PriceBook, provider: str, model: str, tier: str | None, missing: str) -> None:
    """A new model or tier is neither free nor standard."""
    result = ours.price(Offer(provider, model, tier), USAGE, us())
    assert (result.cost_nanos, result.uncached_cost_nanos, result.rows, result.missing) == (None, None, (), (missing,))


def test_no_usage_is_unknown(ours: PriceBook) -> None:
    """Missing is not zero; zero is zero."""
    assert ours.price(Offer("openai", "gpt-5.5"), TokenUsage(), us()).missing == ("usage",)
    assert ours.price(Offer("openai", "gpt-5.5"), TokenUsage(uncached=0, output=0), us()).cost_nanos == 0


@pytest.mark.parametrize(("provider", "model", "tier", "tokens", "row"), [
    ("openai", "gpt-5.5", None, 272_000, "openai/gpt-5.5@launch"), ("openai", "gpt-5.5", None, 272_001, "openai/gpt-5.5@launch>272000"),
    ("xai", "grok-4.7", None, 199_999, "x-ai/grok-4.7@launch"), ("xai", "grok-4.7", None, 200_000, "x-ai/grok-4.7@launch>199999"),
    ("qwen", "qwen3-max", None, 32_000, "qwen/qwen3-max@launch"), ("qwen", "qwen3-max", None, 128_001, "qwen/qwen3-max@launch>128000"),
    ("anthropic", "claude-haiku-5-5", None, 100_001, "anthropic/claude-haiku-5-5@launch>100000"),
])
def test_the_whole_prompt_chooses_the_band(ours: PriceBook, provider: str, model: str, tier: str | None, tokens: int, row: str) -> None:
    """Cached and written tokens count, and the bound itself is still below."""
    half = tokens // 2
    usage = TokenUsage(uncached=1, cache_read=half, cache_write={"unknown": tokens - half - 1}, output=1)
    assert ours.price(Offer(provider, model, tier), usage, us()).rows == (row,)


def test_beyond_the_last_known_band_is_unknown(ours: PriceBook) -> None:
    """Priority has no long-context price before 5.6, and Qwen's table ends."""
    assert ours.price(Offer("openai", "gpt-5.5", "priority"), TokenUsage(uncached=272_001, output=1), us()).missing == ("band of more than 272000 input tokens",)
    assert ours.price(Offer("qwen", "qwen3-max"), TokenUsage(uncached=252_001, output=1), us()).cost_nanos is None


@pytest.mark.parametrize(("provider", "model", "at", "row"), [
    ("openai", "gpt-5.6-sol", "2026-08-20T23:59:59Z", "openai/gpt-5.6-sol@launch"), ("openai", "gpt-5.6-sol", "2026-08-21T00:00:00Z", "openai/gpt-5.6-sol@2026-08-21"),
    ("anthropic", "claude-sonnet-5-5", "2026-10-06T23:59:59Z", "anthropic/claude-sonnet-5-5@launch"), ("anthropic", "claude-sonnet-5-5", "2026-10-07T00:00:00Z", "anthropic/claude-sonnet-5-5@2026-10-07"),
    ("google", "gemini-4-argon", "2026-12-01T00:00:00Z", "google/gemini-4-argon@2026-12-01"),
    ("deepseek", "deepseek-v4-pro", "2026-11-18T01:00:00Z", "deepseek/deepseek-v4-pro@2026-08-17#hours"), ("deepseek", "deepseek-v4-pro", "2026-11-18T04:00:00Z", "deepseek/deepseek-v4-pro@2026-08-17"),
    ("deepseek", "deepseek-v4-pro", "2026-11-21T02:00:00Z", "deepseek/deepseek-v4-pro@2026-08-17"), ("deepseek", "deepseek-v4-pro", "2026-10-01T02:00:00Z", "deepseek/deepseek-v4-pro@2026-08-17"),
])
def test_time_chooses_the_row(ours: PriceBook, provider: str, model: str, at: str, row: str) -> None:
    """The price of then, not of now; DeepSeek's peaks are hours of working days."""
    assert rows(ours, provider, model, at=at) == (row,)


def test_a_price_that_ended_is_unknown(ours: PriceBook) -> None:
    """Fast mode of Opus 4.8 ends with November."""
    assert rows(ours, "anthropic", "claude-opus-4-8", "standard+fast", at="2026-11-30T23:00:00Z") == ("anthropic/claude-opus-4-8@launch#fast",)
    assert ours.price(Offer("anthropic", "claude-opus-4-8", "fast"), USAGE, us("2026-12-01T00:00:00Z")).missing == ("no row is in force at that time",)


def test_batch_stacks_with_the_default_tier_only(ours: PriceBook) -> None:
    """A batch of fast calls does not exist."""
    assert rows(ours, "anthropic", "claude-sonnet-5", "standard", batch=True) == ("anthropic/claude-sonnet-5@2026-10-14#batch",)
    assert ours.price(Offer("anthropic", "claude-opus-5", "fast", batch=True), USAGE, us()).missing == ("tier batch+fast",)


@pytest.mark.parametrize(("provider", "model", "region", "tenths"), [
    ("openai", "gpt-5.5", "eu", 11), ("openai", "gpt-4.1", "eu", 10), ("anthropic", "claude-opus-4-8", "us", 11), ("anthropic", "claude-opus-4-8", "global", 10),
    ("anthropic", "claude-opus-4-8", "not_available", 10), ("vertex", "claude-opus-4-8", "europe-west1", 11), ("azure", "gpt-4.1", "eu", 11),
])
def test_a_place_of_processing_costs_more(ours: PriceBook, provider: str, model: str, region: str, tenths: int) -> None:
    """And the row ids say so."""
    plain = ours.price(Offer(provider, model), USAGE, us()).cost_nanos
    placed = ours.price(Offer(provider, model, None, region), USAGE, us())
    assert plain is not None
    assert placed.cost_nanos == plain * tenths // 10
    assert len(placed.rows) == (1 if region in ("global", "not_available") else 2)


def test_a_place_that_no_rule_knows_is_unknown(ours: PriceBook) -> None:
    """Anthropic sells one region; another would be news."""
    assert ours.price(Offer("anthropic", "claude-opus-4-8", None, "eu"), USAGE, us()).missing == ("region eu",)


def test_the_embedded_lanes_have_prices(ours: PriceBook) -> None:
    """The high-speed lane is tier priority and costs more in every class; the rates are examples and say so."""
    slow, fast = (ours.rates(Offer("embedded", "smollm2-135m-instruct", tier), us()) for tier in ("default", "priority"))
    assert slow is not None
    assert fast is not None
    assert 0 < slow.cached < slow.uncached < fast.uncached
    assert 0 < fast.cached < fast.uncached
    assert slow.output < fast.output
    assert "invented" in next(ours.rows("embedded", "smollm2-135m-instruct")).source


OWN = '[openai]\nrows = [{model = "gpt-5.5", input = "4", output = "20"}]\n'


def test_an_operators_row_wins_with_its_bands_and_only_for_its_tier(tmp_path: Path) -> None:
    """A contract of one rate has no long-context band; the tiers it does not name stay ours."""
    own = book(tmp_path, OWN, built_in=True)
    assert rows(own, "openai", "gpt-5.5", tokens=300_000) == ("file1:openai/gpt-5.5@launch",)
    assert rows(own, "openai", "gpt-5.5", "flex") == ("openai/gpt-5.5@2026-10-12#flex",)
    whole, cached = (own.price(Offer("openai", "gpt-5.5"), usage, us()) for usage in (
        TokenUsage(uncached=100, cache_read=0, output=1), TokenUsage(uncached=40, cache_read=60, output=1),
    ))  # fmt: skip
    assert (cached.missing, cached.cost_nanos) == ((), whole.cost_nanos)     # no price for cached tokens: the full one


def test_an_operators_row_holds_from_its_day_on(tmp_path: Path) -> None:
    """Before it, ours counts."""
    own = book(tmp_path, OWN.replace('input', 'valid_from = 2026-12-01, input'), built_in=True)
    assert rows(own, "openai", "gpt-5.5", at="2026-11-30T23:59:59Z") == ("openai/gpt-5.5@launch",)
    assert rows(own, "openai", "gpt-5.5", at="2026-12-01T00:00:00Z") == ("file1:openai/gpt-5.5@2026-12-01",)


def test_a_later_file_wins_over_an_earlier(tmp_path: Path) -> None:
    """Also by pattern over an exact name below it."""
    both = book(tmp_path, OWN, '[openai]\nrows = [{model = "gpt-5*", input = "1", output = "1"}]\n', built_in=True)
    assert rows(both, "openai", "gpt-5.5") == ("file2:openai/gpt-5*@launch",)
    assert rows(both, "openai", "gpt-6-sol") == ("openai/gpt-6-sol@launch",)


def test_the_longest_pattern_wins(tmp_path: Path) -> None:
    """Self-hosted models are often priced by family."""
    own = book(tmp_path, '[vllm]\nrows = [{model = "*", input = "1"}, {model = "qwen*", input = "2"}, {model = "qwen3-8b", input = "3"}]\n')
    assert [rows(own, "vllm", model)[0].partition("/")[2] for model in ("llama", "qwen2", "qwen3-8b")] == ["*@launch", "qwen*@launch", "qwen3-8b@launch"]


def test_a_row_for_a_region_needs_no_rule(tmp_path: Path) -> None:
    """An operator's own price for a place counts as it stands."""
    own = book(tmp_path, '[acme]\nrows = [{model = "m", input = "1", output = "1"}, {model = "m", region = "eu", input = "3", output = "3"}]\n')
    assert rows(own, "acme", "m", region="eu") == ("file1:acme/m@launch#region:eu",)
    assert own.price(Offer("acme", "m", None, "us"), USAGE, us()).missing == ("region us",)


def test_calls_inside_an_answer_are_priced_at_their_own_model(ours: PriceBook) -> None:
    """The advisor's tokens are billed at the advisor's price; an unknown advisor makes the sum unknown."""
    own = TokenUsage(uncached=1_760, cache_read=412, output=531, other={
        "iteration:advisor_message:claude-opus-5:uncached": 823, "iteration:advisor_message:claude-opus-5:output": 1612})
    result = ours.price(Offer("anthropic", "claude-sonnet-5"), own, us())
    assert result.cost_nanos == 53_327_400
    assert result.rows == ("anthropic/claude-sonnet-5@launch", "anthropic/claude-opus-5@launch")
    strange = TokenUsage(uncached=1, output=1, other={"iteration:advisor_message:claude-zeta:output": 1})
    assert ours.price(Offer("anthropic", "claude-sonnet-5"), strange, us()).cost_nanos is None


def test_rates_for_the_broker(ours: PriceBook) -> None:
    """Micro-dollars per million tokens; a write without a price counts as input, an asked `auto` as the default tier."""
    assert ours.rates(Offer("openai", "gpt-5.5", "auto"), us()) == Rates(5_000_000, 500_000, 5_000_000, 30_000_000)
    assert ours.rates(Offer("anthropic", "claude-opus-5-5", None, "us"), us()) == Rates(4_400_000, 220_000, 5_500_000, 22_000_000)
    assert ours.rates(Offer("openai", "gpt-99"), us()) is None


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([("openai", "gpt-5.6-sol", ("30m", "12h")), ("openai", "gpt-4.1", ()), ("anthropic", "claude-haiku-5-5", ("5m", "1h")), ("xai", "grok-4.7", ()), ("embedded", "smollm2-135m-instruct", ())]),
    st.sampled_from([None, "priority", "flex", "auto"]), st.integers(0, 400_000), st.integers(0, 400_000), st.integers(0, 400_000), st.integers(0, 100_000), st.booleans(),
)
def test_no_call_costs_more_than_the_dearest_rates(ours: PriceBook, lane: tuple[str, str, tuple[str, ...]], tier: str | None, u: int, c: int, w: int, o: int, downgraded: bool) -> None:
    """Whatever part was cached or stored, whichever band it fell into, and if its tier was refused."""
    provider, model, ttls = lane
    usage = TokenUsage(uncached=u, cache_read=c, cache_write=dict.fromkeys(ttls, w), output=o)
    tops = ours.dearest(Offer(provider, model, tier), us(), input_bound=usage.input_total)
    result = ours.price(Offer(provider, model, None if downgraded or tier == "auto" else tier), usage, us())
    if tops is not None and result.cost_nanos is not None:
        assert result.cost_nanos * 1000 <= usage.input_total * tops[0] + o * tops[1] + 999


def test_the_dearest_rate_leaves_out_what_the_request_cannot_meet(ours: PriceBook) -> None:
    """Bands above its bound, and what images and sound cost in a text; an answer may be spoken whatever was asked."""
    assert ours.dearest(Offer("anthropic", "claude-haiku-5-5"), us(), input_bound=9_000) == (200_000, 500_000)
    assert ours.dearest(Offer("anthropic", "claude-haiku-5-5"), us(), input_bound=100_001) == (1_000_000, 2_500_000)
    assert ours.dearest(Offer("openai", "gpt-audio"), us(), input_bound=9) == (2_500_000, 64_000_000)
    assert ours.dearest(Offer("openai", "gpt-audio"), us(), input_bound=9, media=True) == (32_000_000, 64_000_000)


def test_output_limits(ours: PriceBook) -> None:
    """By name or pattern, None where we have no figure."""
    assert [ours.max_output(*lane) for lane in (("openai", "gpt-5.5-2026-04-01"), ("anthropic", "claude-haiku-4-5-20251001"), ("embedded", "smollm2-135m-instruct"), ("vllm", "x"))] == [128_000, 64_000, 8_192, None]


def test_threads_may_ask_for_different_times(ours: PriceBook) -> None:
    """Reports price the past while calls price the present."""
    times = {us("2026-08-20T12:00:00Z"): 30_000_000, us(): 20_000_000}

    def ask(turn: int) -> bool:
        at = list(times)[turn % 2]
        return all(ours.price(Offer("openai", "gpt-5.6-sol"), TokenUsage(uncached=0, output=1_000_000), at).cost_nanos == times[at] * 1_000 for _ in range(500))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(8)))


def test_names_from_clients_do_not_pile_up(ours: PriceBook) -> None:
    """What is remembered is bounded."""
    for number in range(5_000):
        ours.price(Offer("nobody", f"made-up-{number}"), USAGE, us())
    assert len(ours._lines) <= 4096


def test_the_gateways_start_loads_no_tokenizer_and_no_network_client() -> None:
    """Prices, estimates and the meter import nothing heavy."""
    code = ("import sys; import gateway.metering.prices, gateway.metering.estimate, gateway.metering.meter, gateway.metering.listing; "
            "print([m for m in ('tiktoken', 'genai_prices', 'httpx', 'pydantic') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
