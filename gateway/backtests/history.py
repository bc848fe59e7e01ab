"""The ledger and the settings -> the lanes of a backtest, as fast as they were seen to be.
"""
from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from gateway.ledger import Entry
from gateway.metering import prices
from gateway.metering.prices import Offer
from gateway.settings import Settings
from gateway.settings_file import LaneSettings
from router_policies.live import LaneFigures, Prior
from router_policies.simulate import Reality
from router_policies.types import Rates


class RatesOf(Protocol):
    def __call__(self, provider: str, model: str, tier: str | None) -> Rates: ...


def rates_now(book: prices.PriceBook) -> RatesOf:
    """The prices of today."""

    def rates_of(provider: str, model: str, tier: str | None) -> Rates:
        found = book.rates(Offer(provider, model, tier), time.time_ns() // 1_000)
        return Rates() if found is None else Rates(found.uncached, found.cached, found.cache_write, found.output)

    return rates_of


def prior_of(how: LaneSettings) -> Prior:
    """First guesses as the settings have them."""
    prefill = 1.0 / how.prefill_tokens_per_s if how.prefill_tokens_per_s else 0.0
    return Prior(how.first_token_ms / 1e3, prefill, how.ms_per_output_token / 1e3, how.spread)


def lanes(settings: Settings, rates_of: RatesOf, entries: Iterable[Entry] = ()) -> list[Reality]:
    """Every lane of the settings: first guesses, corrected by what the entries show; prices of now."""
    figures = {f"{name}/{lane}": LaneFigures(prior_of(how)) for name, backend in settings.backends.items()
               for lane, how in backend.lanes.items()}  # fmt: skip
    for entry in entries:
        seen, tokens = figures.get(f"{entry.backend}/{entry.lane}"), entry.tokens
        if seen is not None and entry.status == "ok" and tokens.uncached is not None and tokens.output is not None:
            first = None if entry.first_token_ms is None or not entry.stream else entry.first_token_ms / 1e3
            seen.saw(uncached_tokens=tokens.uncached, output_tokens=tokens.output, first_token_s=first,
                     total_s=entry.total_ms / 1e3, now_s=entry.at_us / 1e6)  # fmt: skip
    found = []
    for name, backend in settings.backends.items():
        for lane, how in backend.lanes.items():
            view, prior = figures[f"{name}/{lane}"].view(), prior_of(how)
            tier = how.service_tier or how.priced_as
            provider = backend.provider or name
            rates = {model: rates_of(provider, one.upstream or model, tier) for model, one in backend.by_name.items()}
            found.append(Reality(
                key=f"{name}/{lane}", backend=name, name=lane, rates=rates, slots=how.slots, prior=prior,
                first_token_s=prior.first_token_s * view.first_token[0],
                prefill_s_per_token=prior.prefill_s_per_token * view.first_token[2],
                seconds_per_output_token=prior.seconds_per_output_token * view.pace, spread=view.first_token_spread,
            ))  # fmt: skip
    return found


