"""Which budgets a call stands under, and what is reserved in them before an attempt.

A budget's past is read from the ledger once, the first time it is used in this process; from then on it is counted in
memory. Calls that come at the same moment wait for that one reading.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gateway.backends.fleet import Target
from gateway.budgets import BudgetRule, Budgets, Hold, Refused
from gateway.core.call import Call, Tenant
from gateway.core.errors import Forbidden, Overloaded
from gateway.core.money import nanos_from_picos
from gateway.ledger.reports import LedgerUnavailable, Reports
from gateway.metering import estimate
from gateway.metering.prices import PriceBook
from router_policies.rules import Budget, Policy
from router_policies.types import Ranked

_HOLD_US = 15 * 60 * 1_000_000
_LEAST_OUTPUT = 64
"""A budget that pays for less than this is as good as spent."""


class Held(NamedTuple):
    """What was reserved (None where no budget applies), and how many output tokens it pays for, if the call names no limit."""

    hold: Hold | None = None
    limit: int | None = None


class _Bounds(NamedTuple):
    """A lane as the price book knows it, and how much the call may make of it."""

    candidate: estimate.Candidate
    input_tokens: int
    choices: int


class Holds:
    """Takes holds for attempts."""

    def __init__(
        self, budgets: Budgets, prices: PriceBook, reports: Reports, flush: Callable[[], Awaitable[object]]
    ) -> None:
        self._budgets = budgets
        self._prices = prices
        self._reports = reports
        self._flush = flush
        self._seeded: dict[str, asyncio.Task[None]] = {}

    async def take(
        self, call: Call, policy: Policy, ranked: Ranked, target: Target, attempt_id: str, body_bytes: int
    ) -> Held:
        """Reserves the worst case in every budget that applies. Raises `BudgetExceeded`."""
        rules = rules_of(policy.budgets)
        if not rules:
            return Held()
        lane = _Bounds(
            estimate.Candidate(
                target.provider, ranked.upstream_model, target.set_fields.get("service_tier") or target.priced_as, target.region
            ),
            estimate.input_bound(body_bytes, has_tools=call.sketch.has_tools),
            _choices(call),
        )
        amount, limit = self._ceiling_nanos(call, policy, lane), None
        for rule in rules:
            await self._know(call.tenant, rule)
        expires_us = time.time_ns() // 1_000 + _HOLD_US
        while True:
            try:
                return Held(await self._budgets.hold(call.tenant, rules, amount, attempt_id, expires_us), limit)
            except Refused as no:
                limit, room = self._affordable(call, lane, no.room_nanos), no.room_nanos
                if limit is None or room >= amount:
                    raise
                amount = room

    def _affordable(self, call: Call, lane: _Bounds, room_nanos: int) -> int | None:
        """The output that the money pays for, where the call names no limit of its own and it is worth beginning."""
        if call.sketch.max_output_tokens is not None:
            return None
        most = estimate.affordable_output(
            self._prices, lane.candidate, room_nanos=room_nanos, input_bound=lane.input_tokens, at_us=call.at_us,
            choices=lane.choices,
        )  # fmt: skip
        return most if most is not None and most >= _LEAST_OUTPUT else None

    def _ceiling_nanos(self, call: Call, policy: Policy, lane: _Bounds) -> int:
        output = call.sketch.max_output_tokens
        amount = estimate.ceiling_nanos(
            self._prices, [lane.candidate], input_bound=lane.input_tokens, max_output=output, at_us=call.at_us,
            choices=lane.choices,
        )  # fmt: skip
        if amount is not None:
            return amount
        if policy.ceiling_usd_per_mtok is None:
            raise Forbidden(
                f"the price of {lane.candidate.model} is not known and team {call.tenant.team} has a budget; "
                "the operator can add a price row, or the team's policy a ceiling (unpriced: ceiling)"
            )
        most = lane.input_tokens + (estimate.DEFAULT_MAX_OUTPUT if output is None else output) * lane.choices
        return nanos_from_picos(most * int(policy.ceiling_usd_per_mtok * 1_000_000))

    async def _know(self, tenant: Tenant, rule: BudgetRule) -> None:
        """Waits until the budget's past is read; if that fails, the next call tries again."""
        account = rule.account(tenant)
        reading = self._seeded.get(account)
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = self._seeded[account] = asyncio.create_task(self._seed(tenant, rule))
        try:
            await asyncio.shield(reading)
        except LedgerUnavailable as error:
            refusal = Overloaded("what the budget has spent cannot be read right now", retry_after_s=1)
            refusal.code = "budget_store_unavailable"
            raise refusal from error

    async def _seed(self, tenant: Tenant, rule: BudgetRule) -> None:
        await self._flush()
        where = {"project": tenant.project or ""} if rule.scope == "project" else {}
        where = {"key": tenant.key_id} if rule.scope == "key" else where
        now_us = time.time_ns() // 1_000
        spent = await asyncio.to_thread(
            lambda: self._reports.budget_spent(tenant.team, {rule.name: (rule.window, rule.timezone)}, now_us, **where)
        )
        await self._budgets.seed(tenant, rule, spent[rule.name])


def _choices(call: Call) -> int:
    """How many answers are asked for at once."""
    place = call.sketch.spans.get("n")
    text = call.body[slice(*place)] if place else b""
    return max(int(text), 1) if text.isdigit() and len(text) < 6 else 1


@lru_cache(maxsize=4096)
def rules_of(budgets: Sequence[Budget]) -> tuple[BudgetRule, ...]:
    """A policy's budgets as the budget store knows them."""
    return tuple(
        BudgetRule(name=b.name, limit_nanos=b.limit_nano_usd, window=b.window, timezone=b.timezone, scope=b.scope)
        for b in budgets
    )
