"""A model without a price is not free: the policy refuses it, or reckons with a ceiling."""

from router_policies.types import Ask, Lane, Terms


def priced(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    rates = lane.models[terms.model].rates
    if terms.policy.unpriced == "ceiling" or (rates.uncached is not None and rates.output is not None):
        return None
    return f"no price is known for {terms.model}, and the policy refuses what is not priced"
