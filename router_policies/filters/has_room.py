"""A lane at its in-flight limit takes no more."""

from router_policies.types import Ask, Lane, Terms


def has_room(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    if lane.max_in_flight is None or lane.in_flight < lane.max_in_flight:
        return None
    return f"full: {lane.in_flight} of {lane.max_in_flight} in flight"
