"""Answers that are made in the background: what they took is known when somebody fetches them.

Until then the attempt's entry has no cost and its hold stays; then a correction that names the entry says what it was. It
is booked once, however often the answer is fetched.
"""
from __future__ import annotations

import time

from msgspec.structs import replace

from gateway.backends.fleet import Target
from gateway.budgets import Hold
from gateway.core.outcome import Observed
from gateway.ledger import Entry
from gateway.services import Services

_MOST = 10_000


def keep(via: Services, answer: str, entry: Entry, hold: Hold | None) -> None:
    """Usage of this answer is still to come."""
    via.late[answer] = (entry, hold)
    if len(via.late) > _MOST:
        del via.late[next(iter(via.late))]


async def book(via: Services, answer: str | None, seen: Observed, target: Target) -> None:
    """Does nothing where nothing was to come, or where it has not come yet."""
    if answer is None or answer not in via.late or seen.usage is None or seen.usage.output is None:
        return
    old, hold = via.late.pop(answer)
    tier, model = seen.served_tier or old.served_tier, seen.served_model or old.upstream_model
    priced = via.prices.price(
        old.provider, model, seen.usage, tier=tier, at_us=old.at_us, region=target.region, batch=target.batch
    )
    entry = replace(
        old, id=f"{old.id}-late", kind="correction", corrects=old.id, at_us=time.time_ns() // 1_000, served_model=model,
        served_tier=tier, status="unpriced" if priced.cost_nanos is None else "ok", tokens=seen.usage,
        tokens_from="provider", cost_nanos=priced.cost_nanos, uncached_cost_nanos=priced.uncached_cost_nanos,
        price_rows=priced.rows, reason="usage of a background answer, known when it was fetched",
    )  # fmt: skip
    await via.ledger.append(entry)
    if hold is not None:
        via.budgets.post(hold, priced.cost_nanos, seen.usage.input_total + seen.usage.output)
