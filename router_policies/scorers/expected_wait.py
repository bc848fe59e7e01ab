"""Seconds until the whole answer is there: queue, prefill of what the cache lacks, and the pace of the output.

First token and pace are kept apart: dividing the wait by the number of tokens would reward the lane that talks most.
"""

from router_policies.types import Ask, Lane, Terms


def first_token_wait(ask: Ask, lane: Lane, terms: Terms) -> float:
    fresh = ask.prompt_tokens - ask.cached.get(lane.key, 0) if ask.cached else ask.prompt_tokens
    return lane.queue_s + fresh * lane.prefill_s_per_token if fresh > 0 else lane.queue_s


def expected_wait(ask: Ask, lane: Lane, terms: Terms) -> float:
    return first_token_wait(ask, lane, terms) + terms.output_tokens * lane.seconds_per_output_token
