"""A model without a price is not free: the policy refuses it, reckons with a ceiling, or books its cost as not known.

A team with a budget refuses it unless its policy says otherwise, since what is not known cannot be held against a limit.
"""

from router_policies.types import Ask, Lane, Terms


def priced(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    rates = lane.models[terms.model].rates
    if terms.policy.unpriced != "refuse" or (rates.uncached is not None and rates.output is not None):
        return None
    return f"no price is known for {terms.model}, and the policy refuses what is not priced"
