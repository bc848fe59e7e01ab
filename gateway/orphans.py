"""What attempts cost that were in flight when their process died: their tokens as recovery found them, at the book's rates.

Priced when they are booked and not when they are opened, since nearly no call ever needs it. One that no row covers has no
cost, which is not free. Settings may have changed since: a lane that is gone is priced as its provider's default tier.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from gateway.backends.fleet import Fleet
from gateway.ledger import Entry
from gateway.metering import prices
from gateway.metering.prices import Offer
from gateway.settings import Settings
from router_policies.types import Rates


def pricing(settings: Settings) -> Callable[[Entry], Entry]:
    """A function that prices orphans. Price files are read when the first one comes."""

    @cache
    def known() -> tuple[prices.PriceBook, Fleet]:
        return prices.load(settings.prices), Fleet(settings, lambda *_: Rates())

    def price(orphan: Entry) -> Entry:
        book, fleet = known()
        target = fleet.targets.get(f"{orphan.backend}/{orphan.lane}")
        tier = None if target is None else target.set_fields.get("service_tier") or target.priced_as
        region, batch = (None, False) if target is None else (target.region, target.batch)
        offer = Offer(orphan.provider, orphan.upstream_model, tier, region, batch)
        found = book.price(offer, orphan.tokens, orphan.at_us)
        return replace(
            orphan, cost_nanos=found.cost_nanos, uncached_cost_nanos=found.uncached_cost_nanos, price_rows=found.rows
        )

    return price
