"""Chance that a lane misses the first-token or the total deadline, from a log-normal around the expected wait."""

import math

from router_policies.scorers.expected_wait import first_token_wait
from router_policies.types import Ask, Lane, Terms

_ROOT_2 = math.sqrt(2)


def miss_chance(ask: Ask, lane: Lane, terms: Terms) -> float:
    first = first_token_wait(ask, lane, terms)
    if terms.total_deadline_s is None:
        return 0.0 if terms.first_token_deadline_s is None else _over(first, terms.first_token_deadline_s, lane.spread)
    total = first + terms.output_tokens * lane.seconds_per_output_token
    late = _over(total, terms.total_deadline_s, lane.spread)
    if terms.first_token_deadline_s is None:
        return late
    return max(late, _over(first, terms.first_token_deadline_s, lane.spread))


def _over(expected_s: float, deadline_s: float, spread: float) -> float:
    """P(wait > deadline) for a wait whose median is the expected one."""
    if deadline_s <= 0:
        return 1.0
    if expected_s <= 0:
        return 0.0
    if spread <= 0:
        return 1.0 if expected_s > deadline_s else 0.0
    return 0.5 * math.erfc(math.log(deadline_s / expected_s) / (spread * _ROOT_2))
