"""A lane serves the models that its backend lists, and no others."""

from router_policies.types import Ask, Lane, Terms


def serves_model(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    return None if terms.model in lane.models else f"does not serve {terms.model}"
