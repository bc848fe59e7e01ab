"""Dollars that the call is expected to cost on a lane: tokens of each class times their rates.

A class without a rate is reckoned at the uncached rate, or at the policy's ceiling: never as free.
"""

from router_policies.types import Ask, Lane, Rates, Terms

_USD = 1e-12  # rates are micro-dollars per million tokens


def expected_cost(ask: Ask, lane: Lane, terms: Terms) -> float:
    rates = lane.models[terms.model].rates
    if None in rates:
        rates = _filled(rates, terms.policy.ceiling_usd_per_mtok)
    r_uncached, r_cached, r_written, r_output = rates
    picos = ask.prompt_tokens * r_uncached + terms.output_tokens * r_output  # type: ignore[operator]
    if lane.key in ask.cached or lane.key in ask.written:
        cached = min(ask.cached.get(lane.key, 0), ask.prompt_tokens)
        written = min(ask.written.get(lane.key, 0), ask.prompt_tokens - cached)
        picos -= cached * (r_uncached - r_cached) + written * (r_uncached - r_written)  # type: ignore[operator]
    return picos * _USD


def _filled(rates: Rates, ceiling_usd_per_mtok: float | None) -> Rates:
    ceiling = int((ceiling_usd_per_mtok or 0.0) * 1_000_000)
    uncached = ceiling if rates.uncached is None else rates.uncached
    return Rates(
        uncached=uncached,
        cached=uncached if rates.cached is None else rates.cached,
        cache_write=uncached if rates.cache_write is None else rates.cache_write,
        output=ceiling if rates.output is None else rates.output,
    )
