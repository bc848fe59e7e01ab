"""Which budgets a call stands under, and what is reserved in them before an attempt.

A budget's past is read from the ledger once, the first time it is used in this process; from then on it is counted in
memory. Calls that come at the same moment wait for that one reading.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

from gateway.backends.fleet import Target
from gateway.budgets import BudgetRule, Budgets, Hold
from gateway.core.call import Call, Tenant
from gateway.core.errors import Forbidden
from gateway.core.money import nanos_from_picos
from gateway.ledger.reports import Reports
from gateway.metering import estimate
from gateway.metering.prices import PriceBook
from router_policies.rules import Budget, Policy
from router_policies.types import Ranked

_HOLD_US = 15 * 60 * 1_000_000


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
    ) -> Hold | None:
        """Reserves the worst case in every budget that applies. Raises `BudgetExceeded`; None where no budget applies."""
        rules = rules_of(policy.budgets)
        if not rules:
            return None
        amount = self._ceiling_nanos(call, policy, ranked, target, body_bytes)
        for rule in rules:
            account = rule.account(call.tenant)
            if account not in self._seeded:
                self._seeded[account] = asyncio.create_task(self._seed(call.tenant, rule))
            if not self._seeded[account].done():
                await asyncio.shield(self._seeded[account])
        return await self._budgets.hold(call.tenant, rules, amount, attempt_id, time.time_ns() // 1_000 + _HOLD_US)

    def _ceiling_nanos(self, call: Call, policy: Policy, ranked: Ranked, target: Target, body_bytes: int) -> int:
        tier = target.set_fields.get("service_tier") or target.priced_as
        bound, output = estimate.input_bound(body_bytes, has_tools=call.sketch.has_tools), call.sketch.max_output_tokens
        amount = estimate.ceiling_nanos(
            self._prices,
            [estimate.Candidate(target.provider, ranked.upstream_model, tier, target.region)],
            input_bound=bound,
            max_output=output,
            at_us=call.at_us,
        )
        if amount is not None:
            return amount
        if policy.ceiling_usd_per_mtok is None:
            raise Forbidden(
                f"the price of {ranked.upstream_model} is not known and team {call.tenant.team} has a budget; "
                "the operator can add a price row, or the team's policy a ceiling (unpriced: ceiling)"
            )
        most = bound + (estimate.DEFAULT_MAX_OUTPUT if output is None else output)
        return nanos_from_picos(most * int(policy.ceiling_usd_per_mtok * 1_000_000))

    async def _seed(self, tenant: Tenant, rule: BudgetRule) -> None:
        await self._flush()
        where = {"project": tenant.project or ""} if rule.scope == "project" else {}
        where = {"key": tenant.key_id} if rule.scope == "key" else where
        now_us = time.time_ns() // 1_000
        spent = await asyncio.to_thread(
            lambda: self._reports.budget_spent(tenant.team, {rule.name: (rule.window, rule.timezone)}, now_us, **where)
        )
        await self._budgets.seed(tenant, rule, spent[rule.name])


@lru_cache(maxsize=4096)
def rules_of(budgets: Sequence[Budget]) -> tuple[BudgetRule, ...]:
    """A policy's budgets as the budget store knows them."""
    return tuple(
        BudgetRule(name=b.name, limit_nanos=b.limit_nano_usd, window=b.window, timezone=b.timezone, scope=b.scope)
        for b in budgets
    )
