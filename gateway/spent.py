"""What the ledger says for the budget store: an account's past, and what attempts cost whose holds ran out.

The journal's entries are brought into the database first, so what this process has booked is in the sum.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from gateway.budgets import Account, Unread
from gateway.budgets import Spent as Past
from gateway.ledger.reports import LedgerUnavailable, Reports, Slice

Flush = Callable[[], Awaitable[object]]


class Spent:
    """Reads sums and costs."""

    def __init__(
        self, reports: Reports, flush: Flush, aliases: Callable[[str, str], Sequence[str]],
        keys: Callable[[str, str | None], Sequence[str]],
    ) -> None:  # fmt: skip
        """`aliases`: for a team and a model, the other names under which entries may have it; `keys`: of a team's user."""
        self._reports, self._flush, self._aliases, self._keys = reports, flush, aliases, keys

    async def past(self, account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Past:
        """See `budgets.Past`."""
        part = Slice(since_us=starts_us or 0, where=self._where(account))
        await self._flush()
        try:
            if recent_us is None:
                return Past(await asyncio.to_thread(self._reports.spent, part))
            late = replace(part, since_us=max(part.since_us, recent_us))
            early = replace(part, until_us=late.since_us)
            before = await asyncio.to_thread(self._reports.spent, early, without)
            return Past(before, await asyncio.to_thread(self._reports.spent_each, late))
        except LedgerUnavailable as error:
            raise Unread(str(error)) from error

    async def costs(self, attempt_ids: Sequence[str]) -> Mapping[str, int | None]:
        """Nano-dollars of those attempts that are booked, their corrections included; None: a cost that is not known."""
        await self._flush()
        try:
            return await asyncio.to_thread(self._reports.costs, attempt_ids)
        except LedgerUnavailable as error:
            raise Unread(str(error)) from error

    def _where(self, account: Account) -> dict[str, str | Sequence[str | None] | None]:
        payer, scope = account.payer, account.rule.scope
        where: dict[str, str | Sequence[str | None] | None] = {"team": payer.team}
        if scope == "project":
            where["project"] = payer.project
        elif scope == "key":
            where["key"] = payer.key_id
        elif scope == "user":
            where["key"] = list(self._keys(payer.team, payer.user)) or [""]
        elif scope == "model":
            where["model"] = [payer.model, *self._aliases(payer.team, payer.model)]
        elif scope == "run":
            where["run"] = payer.run
        elif scope.startswith("tag:"):
            where[scope] = payer.tags[scope[4:]]
        return where
