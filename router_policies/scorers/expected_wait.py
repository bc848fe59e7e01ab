"""Seconds until the whole answer is there: queue, prefill of what the cache lacks, and the pace of the output.

First token and pace are kept apart: dividing the wait by the number of tokens would reward the lane that talks most.
"""

from router_policies.live import LENGTH_OF
from router_policies.types import Ask, Lane


def first_token_wait(ask: Ask, lane: Lane) -> float:
    fresh = ask.prompt_tokens - ask.cached.get(lane.key, 0) if ask.cached else ask.prompt_tokens
    if fresh < 0:
        fresh = 0
    seen = lane.first_token_factors[LENGTH_OF[fresh.bit_length()]]
    return lane.backlog_s + (lane.queue_s + fresh * lane.prefill_s_per_token) * seen


def prefill_s(lane: Lane, tokens: int) -> float:
    """How much sooner an answer begins whose prompt has that many tokens fewer to compute."""
    return tokens * lane.prefill_s_per_token * lane.first_token_factors[LENGTH_OF[tokens.bit_length()]]
