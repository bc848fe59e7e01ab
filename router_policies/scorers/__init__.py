"""What a lane's figures for one ask are: `policy.decide` adds them up as cost + value of a second x wait."""

from router_policies.scorers.expected_cost import expected_cost, filled
from router_policies.scorers.expected_wait import first_token_wait
from router_policies.scorers.miss_chance import miss_chance

__all__ = ["expected_cost", "filled", "first_token_wait", "miss_chance"]
