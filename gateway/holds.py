"""What is reserved before an attempt: the worst case in every budget, and a place in every rate limit."""
from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import msgspec

from gateway.backends.fleet import Target
from gateway.budgets import Budgets, Gate, Hold, Refused
from gateway.core.call import Call
from gateway.core.errors import BadRequest, Forbidden
from gateway.core.money import nanos_from_picos
from gateway.core.part import NOTHING, Attached
from gateway.metering import estimate
from gateway.metering.prices import Offer, PriceBook
from gateway.stands import Stands
from gateway.stretch import LIVE_US, STEP_TOKENS, Stretch
from router_policies.rules import Policy
from router_policies.types import Ranked

_AFTER_S = 30.0
"""How long a hold stands after its call should be over."""
_LEAST_OUTPUT = 64
"""A budget that pays for less than this is as good as spent."""
_MOST_CHOICES = 1_000
_NO_OUTPUT_NAMED = 1_024
"""Output tokens that a rate limit reckons with until it is known better, where a call names no limit of its own."""


class Held(NamedTuple):
    """What was reserved (None: nothing limits the call), and the output tokens it pays for, if the call names no limit."""

    hold: Hold | None = None
    limit: int | None = None
    stretch: Stretch | None = None
    """Where it is to be raised as the stream goes on."""


class Asked(msgspec.Struct, frozen=True):
    """One attempt that wants a hold: `body_bytes` are sent to the `target` for it. `first`: of the call's attempts; the others
    are no requests of the client. `deadline`: of the call, monotonic."""

    id: str
    call: Call
    ranked: Ranked
    target: Target
    body_bytes: int
    attached: Attached = NOTHING
    first: bool = True
    deadline: float | None = None


class Holds:
    """Takes holds for attempts."""

    def __init__(self, budgets: Budgets, prices: PriceBook) -> None:
        self._budgets = budgets
        self._prices = prices
        self._stands = Stands()
        self._offers: dict[tuple[str, str], Offer] = {}

    async def take(self, policy: Policy, asked: Asked) -> Held:
        """Reserves the worst case in every budget that applies. Raises `BudgetExceeded`, `RateLimited`, `Overloaded`."""
        call, model, ttl_us = asked.call, asked.ranked.model, _ttl_us(asked)
        accounts = self._stands.accounts(policy, call, model)
        gates: tuple[Gate, ...] = ()
        if policy.limits.rates:
            gates = self._stands.gates(policy, call, model, _tokens(asked), first=asked.first)
        if not accounts:
            return Held(await self._budgets.hold((), 0, asked.id, ttl_us, gates)) if gates else Held()
        reach = self._reach(asked)
        output, most = self._outputs(call, reach)
        amount, limit = self._ceiling_nanos(call, policy, reach, output), None
        while True:
            try:
                hold = await self._budgets.hold(accounts, amount, asked.id, ttl_us, gates)
                if limit is not None or output == most:
                    return Held(hold, limit)
                return Held(hold, None, self._stretch(call, policy, reach, hold, output, most))
            except Refused as no:
                limit, room = self._worth(call, reach, no.room_nanos), no.room_nanos
                if limit is None or room >= amount:
                    raise
                amount = room

    def pays(self, policy: Policy, call: Call) -> bool:
        """Whether any budget pays for a call."""
        return bool(self._stands.accounts(policy, call, ""))

    async def admit(self, call: Call, policy: Policy, attempt_id: str) -> None:
        """Counts a call that costs nothing. Raises `RateLimited`."""
        gates = [gate for gate in self._stands.gates(policy, call, "", 1) if gate.kind == "requests"]
        if gates:
            await self._budgets.hold((), 0, attempt_id, int(_AFTER_S * 1e6), gates)

    def _reach(self, asked: Asked) -> estimate.Reach:
        call, held = asked.call, asked.attached
        offer = self._offer(asked.target, asked.ranked.upstream_model)
        bound = estimate.input_bound(offer, asked.body_bytes, held, has_tools=call.sketch.has_tools)
        return estimate.Reach(offer, bound, choices(call), media=held is not NOTHING)

    def _offer(self, target: Target, model: str) -> Offer:
        """The lane as the price book knows it, in the tier asked for; lanes and their models are few."""
        found = self._offers.get((target.key, model))
        if found is None:
            tier = target.set_fields.get("service_tier") or target.priced_as
            found = self._offers[target.key, model] = Offer(target.provider, model, tier, target.region)
        return found

    def _outputs(self, call: Call, reach: estimate.Reach) -> tuple[int, int]:
        """Output tokens to begin with, and at most: a stream without a limit of its own is paid for in steps."""
        most = call.sketch.max_output_tokens
        if most is not None:
            return most, most
        most = estimate.max_output_of(self._prices, reach.offer)
        return (min(STEP_TOKENS, most) if call.sketch.stream else most), most

    def _stretch(self, call: Call, policy: Policy, reach: estimate.Reach, hold: Hold, output: int, most: int) -> Stretch:
        nanos = partial(self._ceiling_nanos, call, policy, reach)
        return Stretch(self._budgets, hold, output, most, nanos, partial(self._affordable, call, reach))

    def _worth(self, call: Call, reach: estimate.Reach, room_nanos: int) -> int | None:
        """The output that the money pays for, where the call names no limit of its own and it is worth beginning."""
        if call.sketch.max_output_tokens is not None:
            return None
        most = self._affordable(call, reach, room_nanos)
        return most if most is not None and most >= _LEAST_OUTPUT else None

    def _affordable(self, call: Call, reach: estimate.Reach, room_nanos: int) -> int | None:
        return estimate.affordable_output(self._prices, reach, room_nanos, call.at_us)

    def _ceiling_nanos(self, call: Call, policy: Policy, reach: estimate.Reach, output: int) -> int:
        amount = estimate.ceiling_nanos(self._prices, reach, output, call.at_us)
        if amount is not None:
            return amount
        if policy.ceiling_usd_per_mtok is None:
            raise Forbidden(
                f"the price of {reach.offer.model} is not known and team {call.tenant.team} has a budget; "
                "the operator can add a price row, or the team's policy a ceiling (unpriced: ceiling)"
            )
        return nanos_from_picos((reach.input_tokens + output * reach.choices) * int(policy.ceiling_usd_per_mtok * 1_000_000))


def _ttl_us(asked: Asked) -> int:
    """How long the hold stands unless it is renewed, which streams are."""
    if asked.call.sketch.stream:
        return LIVE_US
    target, deadline = asked.target, asked.deadline
    left_s = target.first_byte_timeout_s + target.idle_timeout_s if deadline is None else max(deadline - time.monotonic(), 0.0)
    return int((left_s + _AFTER_S) * 1e6)


def _tokens(asked: Asked) -> int:
    """What a call may use, before anybody counted."""
    output = asked.call.sketch.max_output_tokens
    return estimate.usual_input(asked.body_bytes, asked.attached) + (_NO_OUTPUT_NAMED if output is None else output)


def choices(call: Call) -> int:
    """How many answers are asked for at once. Raises `BadRequest` for what is no such number."""
    if call.sketch.answers is not None:
        return call.sketch.answers
    place = call.sketch.spans.get("n")
    if place is None or call.dialect != "openai_chat" or (text := call.body[slice(*place)]) == b"null":
        return 1
    if not text.isdigit() or len(text) > 4 or not 0 < int(text) <= _MOST_CHOICES:
        raise BadRequest(f"n must be a whole number from 1 to {_MOST_CHOICES}", param="n")
    return int(text)
