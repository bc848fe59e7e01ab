"""Chance that a lane misses the first-token or the total deadline: log-normal waits with the spreads that were seen."""

import math

from router_policies.types import Ask, Lane, Terms

_ROOT_2 = math.sqrt(2)


def miss_chance(ask: Ask, lane: Lane, terms: Terms, first_token_s: float) -> float:
    late = 0.0
    if terms.first_token_deadline_s is not None:
        late = _over(first_token_s, terms.first_token_deadline_s, lane.spread)
    if terms.total_deadline_s is None:
        return late
    rest_s = terms.output_tokens * lane.seconds_per_output_token
    if rest_s <= 0.0:
        return max(late, _over(first_token_s, terms.total_deadline_s, lane.spread))
    pace = lane.spread if lane.pace_spread is None else lane.pace_spread
    rest_spread = math.hypot(pace, terms.output_spread)
    total_s = first_token_s + rest_s
    # The sum of two log-normals is near enough to one whose spread is that of the parts, weighed by their size.
    spread = math.hypot(first_token_s * lane.spread, rest_s * rest_spread) / total_s if total_s < math.inf else lane.spread
    return max(late, _over(total_s, terms.total_deadline_s, spread))


def _over(expected_s: float, deadline_s: float, spread: float) -> float:
    """P(wait > deadline) for a log-normal wait of this mean."""
    if deadline_s <= 0:
        return 1.0
    if expected_s <= 0:
        return 0.0
    if spread <= 0:
        return 1.0 if expected_s > deadline_s else 0.0
    return 0.5 * math.erfc((math.log(deadline_s / expected_s) / spread + spread / 2) / _ROOT_2)
