"""The provider's figures where they came, a marked estimate where they did not, and nothing where nothing was sent."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.outcome import Observed
from gateway.core.usage import TokenUsage
from gateway.metering import meter

FULL = TokenUsage(uncached=20, cache_read=80, output=7)
STARTED = TokenUsage(uncached=300, cache_read=0, cache_write={"5m": 7_000}, output=4, flags=("output_provisional",))


async def weigh(usage: TokenUsage | None, **given: Any) -> meter.Metered:
    facts: dict[str, Any] = {"status": "cut", "sent": True, "prompt_tokens": 50, "produced": lambda: "hello world", "model": "gpt-6-sol"}
    return await meter.weigh(Observed(usage=usage), **{**facts, **given})


@pytest.mark.parametrize("status", ["ok", "cut", "client_gone", "failed"])
async def test_full_usage_is_taken_as_it_is(status: str) -> None:
    """Whatever became of the answer: the provider bills by it."""
    assert await weigh(FULL, status=status) == meter.Metered(FULL, "provider")


async def test_a_cut_before_usage_is_an_estimate() -> None:
    """The prompt as it was estimated, the text as it came; marked."""
    found = await weigh(None)
    assert found == meter.Metered(TokenUsage(uncached=50, output=2, flags=("input_estimated", "output_estimated")), "estimate", 0.02)
    assert found.tokens.cache_read is None


async def test_a_cut_after_the_input_figures_is_mixed() -> None:
    """Anthropic's first event is exact for the input; its output count is a placeholder and is not kept."""
    found = await weigh(STARTED, status="client_gone")
    assert found.source == "mixed"
    assert found.tokens == TokenUsage(uncached=300, cache_read=0, cache_write={"5m": 7_000}, output=2, flags=("output_estimated",))


async def test_a_whole_answer_without_figures_says_so() -> None:
    """Unknown, estimated and labelled, not zero."""
    found = await weigh(None, status="ok")
    assert found.source == "estimate"
    assert "usage_missing" in found.tokens.flags


@pytest.mark.parametrize(("given", "output"), [
    pytest.param({"produced": None}, None, id="the text was not kept"),
    pytest.param({"status": "sent_unanswered"}, None, id="no answer came, but one may have been made"),
    pytest.param({"produced": lambda: ""}, 0, id="nothing had come yet"),
])
async def test_what_nobody_counted_stays_unknown(given: dict[str, Any], output: int | None) -> None:
    """Missing is not zero."""
    found = await weigh(None, **given)
    assert (found.tokens.uncached, found.tokens.output, found.source) == (50, output, "estimate")


@pytest.mark.parametrize("given", [{"sent": False}, {"status": "failed"}], ids=str)
async def test_what_was_not_sent_or_refused_took_nothing(given: dict[str, Any]) -> None:
    """No tokens, and no estimate of any."""
    assert await weigh(None, **given) == meter.Metered(TokenUsage(), "none")


async def test_the_text_is_asked_for_only_when_it_is_needed() -> None:
    """Putting it together costs time on a long answer."""
    def never() -> str:
        raise AssertionError("not needed")
    produced: Callable[[], str] = never
    assert (await weigh(FULL, produced=produced)).source == "provider"


async def test_the_served_models_tokenizer_counts() -> None:
    """The answer may have come from another model than was asked."""
    found = await meter.weigh(
        Observed(served_model="claude-opus-5"), status="cut", sent=True, prompt_tokens=1, produced=lambda: "hello world", model="gpt-6-sol",
    )
    assert (found.tokens.output, found.margin) == (3, 0.4)
