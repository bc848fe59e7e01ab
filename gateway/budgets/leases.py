"""What a replica may spend while the store is away: money drawn ahead, and spent without asking.

While the store is there, each account in use has a lease: a hold of this replica's own, renewed every few seconds, of
what it may need (what it spends in a minute and what its calls hold at once), at most a twentieth of what is left. When
the store is gone, budgets of that size in memory stand in for the real ones; rate limits become this replica's share. What an
outage leaves of a lease is there for the next, which may follow at once: a bad wire comes and goes. The store never holds less
than is counted on here, also where its answer is lost.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from gateway.budgets import Account, Gate, Hold, Refused, StoreAway
from gateway.budgets.memory import MemoryBudgets

_SLICE_S, _SLICES = 10, 6
TTL_S = 600.0
"""How long a lease stands in the store; an outage that is longer ends with refusals."""
_SAFETY_S = 30.0
_START = 0
"""Of the window that a lease has in memory, whatever the window of its account."""
_MORE_US = int(TTL_S * 1e6)


@dataclass(slots=True)
class _Use:
    """What one account needed lately, by slices of ten seconds."""

    account: Account
    spent: list[int] = field(default_factory=lambda: [0] * _SLICES)
    peak: list[int] = field(default_factory=lambda: [0] * _SLICES)
    held: int = 0
    slice: int = 0
    since: float = 0.0
    """When it was first used: what it spends in a minute is reckoned from what it spent since."""
    leased: int = 0
    until: float = 0.0


class Leases:
    """Follows what is needed, remembers what was drawn, and judges calls while the store is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self._alone = MemoryBudgets()
        self._taken: set[str] = set()
        """Calls under way whose hold is of this outage."""
        self._raised: dict[str, list[Hold]] = {}
        """What calls took in this outage on top of their holds."""

    # while the store is there

    def held(self, hold: Hold, delta_nanos: int) -> None:
        """A hold was taken, raised, or is over."""
        now = int(self._clock()) // _SLICE_S
        for account, _ in hold.slots:
            use = self._uses.get(account.id)
            if use is None:
                use = self._uses[account.id] = _Use(account, slice=now, since=self._clock())
            elif use.slice != now:
                _turn(use, now)
            use.account = account
            use.held += delta_nanos
            place = now % _SLICES
            if use.held > use.peak[place]:
                use.peak[place] = use.held

    def spent(self, hold: Hold, cost_nanos: int) -> None:
        now = int(self._clock()) // _SLICE_S
        for account, _ in hold.slots:
            if (use := self._uses.get(account.id)) is not None:
                if use.slice != now:
                    _turn(use, now)
                use.spent[now % _SLICES] += cost_nanos

    def wanted(self) -> list[tuple[Account, int]]:
        """What each account in use should have; one that is idle gives its lease back and is forgotten."""
        now, found = int(self._clock()) // _SLICE_S, []
        for name, use in list(self._uses.items()):
            if use.slice != now:
                _turn(use, now)
            age_s = max(self._clock() - use.since, 1.0)
            want = int(sum(use.spent) * max(60.0 / age_s, 1.0)) + max(use.peak)
            if use.account.enforced and (want or use.leased):
                found.append((use.account, want))
            if not want and not use.leased and not use.held:
                del self._uses[name]
        return found

    def asks(self, account: Account, want_nanos: int) -> int:
        """The store is about to be asked for a lease of that size; how much of the one before is counted on meanwhile."""
        use = self._uses.get(account.id)
        if use is None:
            return 0
        use.leased = min(use.leased, want_nanos)
        return use.leased

    def drawn(self, account: Account, amount_nanos: int) -> None:
        """The store gave so much."""
        if (use := self._uses.get(account.id)) is not None:
            use.leased, use.until = amount_nanos, self._clock() + TTL_S - _SAFETY_S

    def give_back(self, account: Account) -> bool:
        """Whether there was something; the store is told by who asks."""
        use = self._uses.get(account.id)
        if use is None or not use.leased:
            return False
        use.leased = 0
        return True

    def standing(self) -> list[tuple[Account, int]]:
        """Leases that are drawn, and how much."""
        return [(use.account, use.leased) for use in self._uses.values() if use.leased]

    # while it is away

    def end(self) -> list[tuple[Account, int]]:
        """The store is there again: what is left of each lease. What was taken of it, it hears of as holds and settlements."""
        found = []
        for use in self._uses.values():
            if use.leased:
                use.leased = max(use.leased - self._alone.taken_nanos(use.account.id), 0)
                found.append((use.account, use.leased))
        self._alone = MemoryBudgets()
        self._taken.clear()
        self._raised.clear()
        return found

    def take(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate],
        replicas: int,
    ) -> Hold:  # fmt: skip
        """A hold within the leases, its slots those of the leases. Raises `StoreAway`, or `TooFast` by our share of a limit."""
        hold = self._take(accounts, amount_nanos, attempt_id, ttl_us, gates, replicas)
        self._taken.add(attempt_id)
        return hold

    def _take(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate],
        replicas: int,
    ) -> Hold:  # fmt: skip
        leased = [self._leased(account) for account in accounts]
        share = [gate._replace(limit=max(gate.limit // replicas, 1)) for gate in gates]
        try:
            hold = self._alone.take(leased, amount_nanos, attempt_id, ttl_us, share)
        except Refused as no:
            raise StoreAway from no
        return structs.replace(hold, gates=tuple(gates))

    def more(self, hold: Hold, amount_nanos: int) -> None:
        """So much on top of a hold, wherever that was taken. Raises `StoreAway`."""
        accounts, raised = [account for account, _ in hold.slots], self._raised.setdefault(hold.id, [])
        raised.append(self._take(accounts, amount_nanos, f"{hold.id}+{len(raised)}", _MORE_US, (), 1))

    def over(self, hold: Hold, cost_nanos: int | None, tokens: int | None) -> None:
        """A hold is settled: what it took in this outage is free but for its cost. One that was taken before has what it took
        then for its cost, and what it took now only for the rest."""
        cost, raised = hold.amount_nanos if cost_nanos is None else cost_nanos, self._raised.pop(hold.id, ())
        if hold.id in self._taken:
            self._taken.discard(hold.id)
            slots = tuple([(account, _START) for account, _ in hold.slots])
            self._alone.post(structs.replace(hold, slots=slots), cost, tokens)
            cost = 0
        else:
            cost -= hold.amount_nanos - sum(one.amount_nanos for one in raised)
        for one in raised:
            self._alone.post(one, min(max(cost, 0), one.amount_nanos))
            cost -= one.amount_nanos

    def _leased(self, account: Account) -> Account:
        """The account with its lease for a limit, for good: the lease does not come anew with a window."""
        use = self._uses.get(account.id)
        limit = use.leased if use is not None and self._clock() < use.until else 0
        rule = replace(account.rule, limit_nanos=limit, window="total")
        return structs.replace(account, rule=rule)


def _turn(use: _Use, now: int) -> None:
    """Empties the slices that have passed."""
    for place in range(use.slice + 1, min(now, use.slice + _SLICES) + 1):
        use.spent[place % _SLICES] = use.peak[place % _SLICES] = 0
    use.slice = now
    use.peak[now % _SLICES] = max(use.peak[now % _SLICES], use.held)
