"""A lane that is down, draining or cooling takes nothing."""

from router_policies.types import Ask, Lane, Terms


def healthy(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    if lane.healthy:
        return None
    return f"not healthy: {lane.why_not}" if lane.why_not else "not healthy"
