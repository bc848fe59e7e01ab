"""What the policy permits: the class names its lanes, the team names its backends."""

from router_policies.globs import first_match
from router_policies.types import Ask, Lane, Terms


def lane_allowed(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    if terms.klass.place(lane.name) is not None:
        return None
    return f"lane {lane.name} is not among those of class {terms.klass.name}"


def backend_allowed(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    allowed = terms.policy.backends
    if not allowed or first_match(allowed, lane.backend):
        return None
    return f"backend {lane.backend} is not among the team's backends"
