"""What a call stands under: the budgets and rate limits of its team's policy, as the budget store knows them.

Worked out once for each payer; a call then looks them up.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gateway.budgets import Account, BudgetRule, Gate, Payer
from gateway.core.call import Call
from router_policies.globs import first_match
from router_policies.rules import Budget, Limits, Policy, Rate


def payer_of(call: Call, model: str) -> Payer:
    """Who pays; `model` is the one that will run, aliases resolved."""
    tenant = call.tenant
    return Payer(
        team=tenant.team, project=tenant.project, key_id=tenant.key_id, user=tenant.user, model=model, run=call.run,
        tags=call.tags,
    )  # fmt: skip


def accounts_of(policy: Policy, call: Call, model: str) -> tuple[Account, ...]:
    """Every budget that the call is paid from."""
    if not policy.budgets:
        return ()
    tenant, rules = call.tenant, rules_of(policy.budgets)
    if rules.plain:
        return _accounts(policy.budgets, Payer(team=tenant.team, project=tenant.project, key_id=tenant.key_id, user=tenant.user))
    return _of(rules.all, payer_of(call, model))


class Rules:
    """A policy's budgets; `plain`: none of them counts by what changes from call to call."""

    __slots__ = ("all", "plain")

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self.all = tuple(
            BudgetRule(
                name=b.name, limit_nanos=b.limit_nano_usd, window=b.window, timezone=b.timezone, scope=b.scope,
                on_exhausted=b.on_exhausted, status=b.status,
            )
            for b in budgets
        )  # fmt: skip
        self.plain = all(b.scope in ("team", "project", "key", "user") for b in budgets)


@lru_cache(maxsize=4096)
def rules_of(budgets: Sequence[Budget]) -> Rules:
    return Rules(budgets)


@lru_cache(maxsize=65_536)
def _accounts(budgets: Sequence[Budget], payer: Payer) -> tuple[Account, ...]:
    return _of(rules_of(budgets).all, payer)


def _of(rules: Sequence[BudgetRule], payer: Payer) -> tuple[Account, ...]:
    found = (rule.account(payer) for rule in rules)
    return tuple([account for account in found if account is not None])


def gates_of(limits: Limits, call: Call, model: str, tokens: int, *, first: bool = True) -> tuple[Gate, ...]:
    """Every rate limit that an attempt passes. `first`: of its call; later ones are not requests of the client."""
    if not limits.any_rate:
        return ()
    payer, gates = payer_of(call, model), []
    for rate in limits.rates:
        if rate.models and first_match(rate.models, model) is None:
            continue
        owner = payer.owner(rate.scope)
        if owner is not None:
            gates += [gate for gate in _gates(rate, payer.team, owner) if first or gate.kind != "requests"]
    return tuple([gate._replace(units=max(tokens, 1)) if gate.kind == "tokens" else gate for gate in gates])


@lru_cache(maxsize=65_536)
def _gates(rate: Rate, team: str, owner: str) -> tuple[Gate, ...]:
    who, of = owner.lstrip("/").replace(":", " ", 1), f"{rate.name}/" if rate.name else ""
    who = f"team {team}, {who}," if who else f"team {team}"
    found = []
    if rate.requests_per_minute is not None:
        says = f"{who} may start {rate.requests_per_minute} calls a minute"
        found.append(Gate(f"{team}/{of}requests{owner}", "requests", rate.requests_per_minute, 1, says))
    if rate.tokens_per_minute is not None:
        says = f"{who} may use {rate.tokens_per_minute} tokens a minute"
        found.append(Gate(f"{team}/{of}tokens{owner}", "tokens", rate.tokens_per_minute, 1, says))
    if rate.concurrent is not None:
        says = f"{who} may have {rate.concurrent} calls under way at once"
        found.append(Gate(f"{team}/{of}concurrent{owner}", "concurrent", rate.concurrent, 1, says))
    return tuple(found)
