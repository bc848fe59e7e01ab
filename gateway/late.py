"""Answers that are made in the background: what they took is known when somebody fetches them.

Until then the attempt's entry has no cost and its hold stays; then a correction that names the entry says what it was. It
is booked once, however often the answer is fetched, and by whichever process: what waits is in the database too.
"""
from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from gateway.backends.fleet import Target
from gateway.budgets import Hold
from gateway.core import clock
from gateway.core.outcome import Observed
from gateway.ledger import Entry
from gateway.memory_table import Kept
from gateway.metering.prices import Offer
from gateway.services import Services

_MOST = 10_000
_log = logging.getLogger("tollway.late")


async def keep(via: Services, answer: str, entry: Entry, hold: Hold | None) -> None:
    """Usage of this answer is still to come."""
    via.late[answer] = (entry, hold)
    if len(via.late) > _MOST:
        del via.late[next(iter(via.late))]
    waits = {"entry": msgspec.to_builtins(entry), "hold": msgspec.to_builtins(hold)}
    try:
        await via.memory.keep(Kept(answer, entry.team, entry.backend, entry.at_us, waits))
    except Exception as error:  # the answer goes out all the same
        _log.warning("usage of %s is waited for in this process only (%s)", answer, type(error).__name__)


async def _waiting(via: Services, answer: str) -> tuple[Entry, Hold | None] | None:
    if answer in via.late:
        return via.late.pop(answer)
    try:
        found = await via.memory.find(answer)
    except Exception:  # it is booked when the answer is fetched again
        return None
    if found is None or found.pending is None:
        return None
    return msgspec.convert(found.pending["entry"], Entry), msgspec.convert(found.pending["hold"], Hold | None)


async def book(via: Services, answer: str | None, seen: Observed, target: Target) -> None:
    """Does nothing where nothing was to come, or where it has not come yet."""
    if answer is None or seen.usage is None or seen.usage.output is None:
        return
    waited = await _waiting(via, answer)
    if waited is None:
        return
    old, hold = waited
    tier, model = seen.served_tier or old.served_tier, seen.served_model or old.upstream_model
    priced = via.prices.price(Offer(old.provider, model, tier, target.region, target.batch), seen.usage, old.at_us)
    entry = replace(
        old, id=f"{old.id}-late", kind="correction", corrects=old.id, at_us=clock.now_us(), served_model=model,
        served_tier=tier, status="unpriced" if priced.cost_nanos is None else "ok", tokens=seen.usage,
        tokens_from="provider", cost_nanos=priced.cost_nanos, uncached_cost_nanos=priced.uncached_cost_nanos,
        price_rows=priced.rows, reason="usage of an answer made in the background or in a batch, known when it was fetched",
    )  # fmt: skip
    await via.ledger.append(entry)
    if hold is not None:
        via.budgets.post(hold, priced.cost_nanos, seen.usage.input_total + seen.usage.output)
    try:
        await via.memory.booked(answer)
    except Exception as error:  # booked again it changes nothing: the correction's id is the same
        _log.warning("%s was booked, and may be looked at again (%s)", answer, type(error).__name__)
