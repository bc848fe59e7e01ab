"""A ceiling is never too low, costs microseconds, and is unknown where a price is."""
from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.part import Attached
from gateway.core.usage import TokenUsage
from gateway.metering import encodings, estimate
from gateway.metering.estimate import Reach
from gateway.metering.prices import Offer, PriceBook, load

NOW_US = 1_794_744_000_000_000
FAST = Offer("acme", "m", "priority")
SLOW = Offer("acme", "m")
OWN = """
[acme]
rows = [
  {model = "m", input = "0.02", cached = "0.002", output = "0.08"},
  {model = "m", tier = "priority", input = "0.05", cached = "0.005", output = "0.20"},
]
limits = {"*" = 8192}
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> PriceBook:
    path = tmp_path_factory.mktemp("prices") / "own.toml"
    path.write_text(OWN)
    return load([path])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400), st.sampled_from(["o200k_base", "cl100k_base"]))
def test_a_body_has_at_least_as_many_bytes_as_its_prompt_has_tokens(text: str, name: str) -> None:
    """So the length of the request bounds its tokens, in any script."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert encodings.count(text.encode("utf-8", "replace").decode(), name) <= estimate.input_bound(FAST, len(body))


def test_the_dearest_rates_count(book: PriceBook) -> None:
    """1,000 tokens in at 0.05 and 10 out at 0.20 dollars a million; each of three answers costs its output."""
    assert estimate.ceiling_nanos(book, Reach(FAST, 1_000), 10, NOW_US) == 52_000
    assert estimate.ceiling_nanos(book, Reach(SLOW, 1_000, choices=3), 10, NOW_US) == 22_400


def test_without_a_limit_the_models_own_counts(book: PriceBook) -> None:
    """And a wide one where the model is not known to have any."""
    assert estimate.max_output_of(book, SLOW) == 8_192
    assert estimate.max_output_of(book, Offer("vllm", "own")) == estimate.DEFAULT_MAX_OUTPUT


def test_without_a_price_the_ceiling_is_unknown(book: PriceBook) -> None:
    """The policy decides what that means."""
    own = Reach(Offer("vllm", "own"), 1)
    assert estimate.ceiling_nanos(book, own, 1, NOW_US) is None
    assert estimate.affordable_output(book, own, 10, NOW_US) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 100_000), st.integers(1, 4))
def test_what_the_room_pays_for_fits_the_room(book: PriceBook, room: int, bound: int, choices: int) -> None:
    """A call that names no limit gets the output its budget can pay."""
    reach = Reach(FAST, bound, choices)
    most = estimate.affordable_output(book, reach, room, NOW_US)
    assert most is not None
    cost = estimate.ceiling_nanos(book, reach, most, NOW_US)
    assert cost is not None
    assert most == 0 or cost <= room


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 50_000))
def test_a_settled_call_is_within_its_ceiling(book: PriceBook, u: int, c: int, o: int) -> None:
    """Whatever the provider served."""
    lane = Offer("openai", "gpt-5.6-sol", "priority")
    ceiling = estimate.ceiling_nanos(book, Reach(lane, u + c), o, NOW_US)
    cost = book.price(Offer(lane.provider, lane.model, "priority"), TokenUsage(uncached=u, cache_read=c, output=o), NOW_US).cost_nanos
    assert ceiling is not None
    assert cost is not None
    assert cost <= ceiling


@pytest.mark.parametrize(("model", "encoding", "margin"), [
    ("gpt-4o-2024-08-06", "o200k_base", 0.02), ("gpt-4-0613", "cl100k_base", 0.02), ("gpt-4.1", "o200k_base", 0.02), ("gpt-6-sol", "o200k_base", 0.02),
    ("claude-opus-5-5", "o200k_base", 0.4), ("openai/gpt-oss-120b", "o200k_base", 0.02), ("meta-llama/llama-4", "o200k_base", 0.5), ("o3", "o200k_base", 0.02),
])
def test_a_model_has_a_stand_in_and_a_stated_error(model: str, encoding: str, margin: float) -> None:
    """tiktoken knows only OpenAI's names."""
    found = estimate.tokenizer_of(model)
    assert (found.encoding, found.margin) == (encoding, margin)


def test_counts_are_scaled_and_rounded_up() -> None:
    """Six tokens of o200k are taken for eight of SmolLM2."""
    assert estimate.count("tiktoken is great!", "gpt-6-sol") == (6, 0.02)
    assert estimate.count("tiktoken is great!", "HuggingFaceTB/SmolLM2-135M-Instruct") == (8, 0.32)
    assert estimate.count("", "claude-opus-5") == (0, 0.4)


def test_a_ceiling_takes_microseconds(book: PriceBook) -> None:
    """It stands in the request path (its own time on the processor: the machine is shared)."""
    estimate.ceiling_nanos(book, Reach(FAST, 5_000), 400, NOW_US)

    def took_s() -> float:
        began = time.thread_time()
        for _ in range(1_000):
            estimate.ceiling_nanos(book, Reach(FAST, 5_000), 400, NOW_US)
        return time.thread_time() - began

    assert any(took_s() < 0.2 for _ in range(20))


@pytest.mark.parametrize(("held", "most", "usual"), [
    (Attached(images=2, image_bytes=900), 100 + 64 + 40_000, 25 + 3_000),
    (Attached(linked=2), 1_000 + 64 + 400_000, 250 + 4_000),
    (Attached(recalled=40), 1_000 + 64 + 200_000, 250 + 12_000),
    (Attached(earlier_tokens=70_000), 1_000 + 64 + 70_000, 250 + 70_000),
    (Attached(images=600, linked=9), 1_000 + 64 + 1_000_000, 250 + 918_000),
])
def test_what_stands_beside_the_text_counts_by_what_it_may_come_to(held: Attached, most: int, usual: int) -> None:
    """Not by the bytes in which it is sent or named; earlier items belong to one conversation."""
    assert (estimate.input_bound(FAST, 1_000, held), estimate.usual_input(1_000, held)) == (most, usual)


def test_an_image_counts_by_its_model() -> None:
    one = Attached(images=1)
    assert [estimate.input_bound(Offer(*lane), 0, one) - 64 for lane in (("anthropic", "claude-opus-5"), ("openai", "gpt-4o-mini-2024-07-18"), ("openai", "gpt-5.5"))] == [5_000, 50_000, 20_000]
