"""Dollars that the call is expected to cost on a lane: tokens of each class times their rates.

A class without a rate is reckoned at the uncached rate, or at the policy's ceiling, or at a rate dearer than any known one:
never as free, so a lane whose price is not known is not chosen for being cheap.
"""

from router_policies.types import Ask, Lane, Offer, Rates

NOT_KNOWN_USD_PER_MTOK = 1_000.0


def expected_cost(ask: Ask, lane: Lane, offer: Offer, output_tokens: float) -> float:
    prompt = ask.prompt_tokens
    usd = prompt * offer.uncached_usd + output_tokens * offer.output_usd
    cached = ask.cached.get(lane.key, 0) if ask.cached else 0
    if cached:
        cached = cached if cached < prompt else prompt
        usd -= cached * (offer.uncached_usd - offer.cached_usd)
    if ask.written and lane.key in ask.written:
        usd -= min(ask.written[lane.key], prompt - cached) * (offer.uncached_usd - offer.written_usd)
    return usd


def filled(rates: Rates, ceiling_usd_per_mtok: float | None) -> tuple[float, float, float, float]:
    """Dollars a token of each class (uncached, cached, written, output), with something in every place."""
    ceiling = (ceiling_usd_per_mtok or NOT_KNOWN_USD_PER_MTOK) * 1_000_000
    uncached = ceiling if rates.uncached is None else rates.uncached
    found = (
        uncached,
        uncached if rates.cached is None else rates.cached,
        uncached if rates.cache_write is None else rates.cache_write,
        ceiling if rates.output is None else rates.output,
    )
    return tuple(micros * 1e-12 for micros in found)  # type: ignore[return-value]
