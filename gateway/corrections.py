"""Corrections of the ledger count in running budgets at once, not only when the past is read again."""
from __future__ import annotations

from gateway.budgets import Payer, StoreAway
from gateway.ledger import Entry
from gateway.services import Services
from gateway.stands import Stands
from router_policies.policy import resolve_model


class Corrections:
    """A ledger that tells the budgets of what it books; see `Ledger`."""

    def __init__(self, via: Services) -> None:
        self._via, self._stands = via, Stands()

    async def append(self, entry: Entry) -> None:
        """Books it. Budgets that are away learn of it when they are next read from the ledger."""
        await self._via.ledger.append(entry)
        if entry.cost_nanos is None or not (delta := entry.cost_nanos - (entry.held_nanos or 0)):
            return
        policy = self._via.policies.current.for_team(entry.team)
        tenant = self._via.keys.known(entry.key_id)
        payer = Payer(
            team=entry.team, project=entry.project, key_id=entry.key_id, user=None if tenant is None else tenant.user,
            model=resolve_model(policy, entry.model).model, run=entry.run, tags=entry.tags or {},
        )  # fmt: skip
        for account in self._stands.accounts_of(policy, payer, tenant):
            try:
                await self._via.budgets.correct(account, entry.id, delta, entry.at_us)
            except StoreAway:
                return
