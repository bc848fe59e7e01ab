import pytest

from router_policies.scorers import expected_wait, first_token_wait


def test_first_token_and_pace_are_kept_apart(ask, lane, terms):
    """A long answer does not make a slow start look fast."""
    slow_start = lane(queue_s=2.0, prefill_s_per_token=0.001, seconds_per_output_token=0.001)
    assert first_token_wait(ask(), slow_start, terms(output_tokens=10_000)) == pytest.approx(3.0)
    assert expected_wait(ask(), slow_start, terms(output_tokens=1_000)) == pytest.approx(4.0)


def test_what_is_cached_needs_no_prefill(ask, lane, terms):
    """Nor does a cache that holds more than the prompt make time run backwards."""
    one = lane(prefill_s_per_token=0.001)
    assert first_token_wait(ask(cached={"b/standard": 900}), one, terms()) == pytest.approx(0.1)
    assert first_token_wait(ask(cached={"b/standard": 5_000}), one, terms()) == 0.0
