"""Dollars that the call is expected to cost on a lane: tokens of each class times their rates.

A class without a rate is reckoned at the uncached rate, or at the policy's ceiling, or at a rate dearer than any known one:
never as free, so a lane whose price is not known is not chosen for being cheap.
"""

from router_policies.types import Ask, Lane, Rates, Terms

_USD = 1e-12  # rates are micro-dollars per million tokens
_NOT_KNOWN_USD_PER_MTOK = 1_000.0


def expected_cost(ask: Ask, lane: Lane, terms: Terms) -> float:
    rates = lane.models[terms.model].rates
    if None in rates:
        rates = _filled(rates, terms.policy.ceiling_usd_per_mtok)
    r_uncached, r_cached, r_written, r_output = rates
    picos = ask.prompt_tokens * r_uncached + terms.output_tokens * r_output  # type: ignore[operator]
    cached = ask.cached.get(lane.key, 0) if ask.cached else 0
    if cached:
        cached = cached if cached < ask.prompt_tokens else ask.prompt_tokens
        picos -= cached * (r_uncached - r_cached)  # type: ignore[operator]
    if ask.written and lane.key in ask.written:
        picos -= min(ask.written[lane.key], ask.prompt_tokens - cached) * (r_uncached - r_written)  # type: ignore[operator]
    return picos * _USD


def _filled(rates: Rates, ceiling_usd_per_mtok: float | None) -> Rates:
    ceiling = int((ceiling_usd_per_mtok or _NOT_KNOWN_USD_PER_MTOK) * 1_000_000)
    uncached = ceiling if rates.uncached is None else rates.uncached
    return Rates(
        uncached=uncached,
        cached=uncached if rates.cached is None else rates.cached,
        cache_write=uncached if rates.cache_write is None else rates.cache_write,
        output=ceiling if rates.output is None else rates.output,
    )
