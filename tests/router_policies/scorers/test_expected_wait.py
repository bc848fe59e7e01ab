import pytest

from router_policies.scorers import first_token_wait


def test_what_is_cached_needs_no_prefill(ask, lane):
    """Nor does a cache that holds more than the prompt make time run backwards."""
    one = lane(prefill_s_per_token=0.001)
    assert first_token_wait(ask(cached={"b/standard": 900}), one) == pytest.approx(0.1)
    assert first_token_wait(ask(cached={"b/standard": 5_000}), one) == 0.0


def test_what_was_seen_corrects_prompts_of_that_length(ask, lane):
    """A lane that is slow with long prompts is not slow with short ones; the queue stands beside both."""
    one = lane(queue_s=1.0, prefill_s_per_token=0.0, backlog_s=5.0, first_token_factors=(1.0, 3.0, 1.0, 1.0, 1.0, 1.0))
    assert first_token_wait(ask(prompt_tokens=100), one) == pytest.approx(6.0)
    assert first_token_wait(ask(prompt_tokens=1_000), one) == pytest.approx(8.0)
    assert first_token_wait(ask(prompt_tokens=1_000, cached={"b/standard": 900}), one) == pytest.approx(6.0)
