"""What a call stands under: the budgets and rate limits of its team's policy, as the budget store knows them.

Worked out once for each payer of each version of a policy; a call then looks them up.
"""
from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

from gateway.budgets import Account, BudgetRule, Gate, Payer
from gateway.budgets.windows import Kind
from gateway.core.call import PASSED_ON, Call, Tenant
from gateway.core.money import nanos
from router_policies.globs import first_match
from router_policies.rules import Policy, Rate

_STEADY = frozenset({"team", "project", "key", "user"})
"""Scopes that follow from the key alone."""
_OF_CALLS = frozenset({"requests", "same"})
"""Kinds of gates that count calls, not attempts."""
_MOST = 65_536


class Stands:
    """Remembers what it worked out; bounded."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[tuple[BudgetRule, ...], bool]] = {}
        self._accounts: dict[tuple[Any, ...], tuple[Account, ...]] = {}
        self._gates: dict[tuple[str, int, str, str], tuple[Gate, ...]] = {}

    def accounts(self, policy: Policy, call: Call, model: str) -> tuple[Account, ...]:
        """Every budget that the call is paid from; `model` is the one that runs, aliases resolved."""
        tenant = call.tenant
        if not policy.budgets and tenant.budget is None:
            return ()
        rules, steady = self._rules_of(policy)
        if tenant.budget is not None:
            rules = (*rules, _own_rule(tenant.budget[0], cast(Kind, tenant.budget[1]), tenant.budget[2]))
        if not steady:
            return _of(rules, payer_of(call, model))
        key = policy.version, tenant.team, tenant.project, tenant.key_id, tenant.user, tenant.budget
        found = self._accounts.get(key)
        if found is None:
            _bound(self._accounts)
            payer = Payer(team=tenant.team, project=tenant.project, key_id=tenant.key_id, user=tenant.user)
            found = self._accounts[key] = _of(rules, payer)
        return found

    def accounts_of(self, policy: Policy, payer: Payer, tenant: Tenant | None) -> tuple[Account, ...]:
        """The same for a call of the past; `tenant` is whose key it was, if it is known still."""
        rules, _ = self._rules_of(policy)
        if tenant is not None and tenant.budget is not None:
            rules = (*rules, _own_rule(tenant.budget[0], cast(Kind, tenant.budget[1]), tenant.budget[2]))
        return _of(rules, payer)

    def gates(self, policy: Policy, call: Call, model: str, tokens: int, *, first: bool = True) -> tuple[Gate, ...]:
        """Every rate limit that an attempt passes; only a call's first attempt counts as a request of the client."""
        if not policy.limits.rates:
            return ()
        payer, gates = payer_of(call, model), []
        for n, rate in enumerate(policy.limits.rates):
            if rate.models and first_match(rate.models, model) is None:
                continue
            if (owner := payer.owner(rate.scope)) is None:
                continue
            key = policy.version, n, payer.team, owner
            found = self._gates.get(key)
            if found is None:
                _bound(self._gates)
                found = self._gates[key] = _made(rate, payer.team, owner)
            gates += [gate for gate in found if first or gate.kind not in _OF_CALLS]
        return tuple([_for(gate, call, tokens) for gate in gates if gate.kind != "same" or _prompt(call)])

    def _rules_of(self, policy: Policy) -> tuple[tuple[BudgetRule, ...], bool]:
        found = self._rules.get(policy.version)
        if found is None:
            _bound(self._rules)
            rules = tuple(
                BudgetRule(
                    name=b.name, limit_nanos=b.limit_nano_usd, window=b.window, timezone=b.timezone, scope=b.scope,
                    on_exhausted=b.on_exhausted, status=b.status,
                )
                for b in policy.budgets
            )  # fmt: skip
            found = self._rules[policy.version] = rules, all(rule.scope in _STEADY for rule in rules)
        return found


@lru_cache(maxsize=4_096)
def _own_rule(limit_nanos: int, window: Kind, timezone: str) -> BudgetRule:
    """The budget that a key brings with it; no budget of a policy can have its name."""
    return BudgetRule(name="(key)", limit_nanos=limit_nanos, window=window, timezone=timezone, scope="key")


def payer_of(call: Call, model: str) -> Payer:
    """Who pays for a call."""
    tenant = call.tenant
    return Payer(
        team=tenant.team, project=tenant.project, key_id=tenant.key_id, user=tenant.user, model=model, run=call.run,
        tags=call.tags,
    )  # fmt: skip


def _bound(known: dict[Any, Any]) -> None:
    if len(known) >= _MOST:
        known.clear()


def _of(rules: tuple[BudgetRule, ...], payer: Payer) -> tuple[Account, ...]:
    found = (rule.account(payer) for rule in rules)
    return tuple([account for account in found if account is not None])


def _for(gate: Gate, call: Call, tokens: int) -> Gate:
    """The gate as it stands before this call."""
    if gate.kind == "tokens":
        return gate._replace(units=max(tokens, 1))
    if gate.kind == "same":
        return gate._replace(id=f"{gate.id}/{blake2b(_prompt(call), digest_size=8).hexdigest()}")
    return gate


def _prompt(call: Call) -> bytes:
    """What tells one prompt from another; where nothing is known of a request, that is where it goes and all of it."""
    if call.dialect == PASSED_ON and call.body:
        return call.path.encode("utf-8", "replace") + b"\0" + call.body
    return b"".join([part.block.named().to_bytes(8) for part in call.sketch.parts])


def _made(rate: Rate, team: str, owner: str) -> tuple[Gate, ...]:
    whose = owner.lstrip("/").replace(":", " ", 1)
    who = f"team {team}, {whose}," if whose else f"team {team}"
    of = f"{rate.name}/" if rate.name else ""
    spend = rate.usd_per_minute
    limits = (
        ("requests", rate.requests_per_minute, "may start {} calls a minute"),
        ("tokens", rate.tokens_per_minute, "may use {} tokens a minute"),
        ("concurrent", rate.concurrent, "may have {} calls under way at once"),
        ("spend", None if spend is None else nanos(spend), f"may spend {spend} USD a minute"),
        ("same", rate.same_prompt_per_minute, "may send one and the same prompt {} times a minute; does it run in circles?"),
    )
    return tuple([
        Gate(f"{team}/{of}{kind}{owner}", kind, limit, int(kind != "spend"), f"{who} {says.format(limit)}")  # type: ignore[arg-type]
        for kind, limit, says in limits
        if limit is not None
    ])  # fmt: skip
