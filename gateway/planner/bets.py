"""What plans may lose: an account per client and model of what they have gained over the provider's own habit, and the limit.

What a provider does unasked (store every prompt's end, or everything for a while) has a cost that can be told for each call.
Where a plan departs from it, it pays at once for what may come back later (a write), or saves at once what may be missed later
(a write left out). Such a bet is placed only while what it can lose is covered by `SHARE` of what the habit would have cost so
far and by what earlier bets have won. So the loss is bounded whatever the chances were taken for; only first bets, when
nothing can be known, are free: an advance on that share. Where the habit is a cache of its own, calls show without a bet what
one would win or lose: that counts too. All figures are in tokens at the uncached input price.
"""
from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.planner.values import Stake

SHARE = 0.005
"""Of what the habit would have cost: what bets may lose."""


class Limit(NamedTuple):
    """Of an account: how many bets need no cover, and the share of what the habit would have cost that the others may lose;
    `share_learnt` is in force from `learnt_tokens` of that cost on, since chances are known by then. `free_share`: of that
    cost, what one that needs no cover may lose."""

    free: int
    share: float = SHARE
    share_learnt: float = SHARE
    learnt_tokens: float = math.inf
    free_share: float = math.inf


@dataclass(slots=True)
class _Account:
    spent: float = 0.0
    """What the habit would have cost."""
    lost: float = 0.0
    """What plans have cost more than that; negative: they have won."""
    free: float = 0.0
    """What may be lost by free bets before the share comes to as much: an advance on it."""
    shown: float = 0.0
    """What calls have shown that bets win."""
    placed: float = 0.0
    """How many free bets there were."""
    open: OrderedDict[int, tuple[int, float]] = field(default_factory=OrderedDict)
    """Prompt that was not stored -> until when it may be missed, and what that would cost."""
    risk: float = 0.0

    def close(self, key: int) -> None:
        self.risk -= self.open.pop(key)[1]

    def room(self, limit: Limit) -> float:
        share = limit.share if self.spent < limit.learnt_tokens else limit.share_learnt
        return max(share * self.spent, self.free) + self.shown - self.lost - self.risk


Added = tuple[str, float, float, float, float, float]
"""An account's name, and what is added to its figures: spent, lost, free, placed, shown."""


class Bets:
    """The accounts; bounded, oldest out first. Processes tell each other what they add; what is open only the one
    that placed it knows."""

    def __init__(self, most: int = 16_384, most_open: int = 1_024) -> None:
        self._most, self._most_open = most, most_open
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self.fresh: dict[int, Added] | None = None
        self._told = 0

    def came(self, name: str, keys: Sequence[int], now_us: int) -> None:
        """Closes the bets that this prompt decides and those whose time is over."""
        account = self._account(name)
        while account.open and next(iter(account.open.values()))[0] <= now_us:
            account.close(next(iter(account.open)))
        if account.open:
            for key in [key for key in keys if key in account.open]:
                account.close(key)

    def covers(self, name: str, most_lost: float, limit: Limit, *, free: bool = True) -> bool:
        """Whether a bet may be placed with which its call can lose so much; `free`: one that needs no cover will do, unless
        calls have shown that bets lose as much."""
        account = self._account(name)
        if max(most_lost, 0.0) <= account.room(limit):
            return True
        if not free or account.placed >= limit.free or account.shown < -most_lost:
            return False
        if most_lost / limit.free_share > account.spent:
            return False
        advance = most_lost + account.lost + account.risk - account.shown
        self._add(name, free=max(advance - account.free, 0.0), placed=1.0)
        return True

    def shown(self, name: str, won: float, most: float) -> None:
        """What bets win on this call (negative: lose), placed or not; of all of it together up to `most` counts, either way."""
        before = self._account(name).shown
        self._add(name, shown=min(max(before + won, -most), most) - before)

    def open(self, name: str, key: int, most_lost: float, until_us: int) -> None:
        """A bet that is decided later: by this prefix coming again before that time, or not."""
        account = self._account(name)
        if key in account.open:
            account.close(key)
        account.open[key] = (until_us, most_lost)
        account.risk += most_lost
        if len(account.open) > self._most_open:
            account.close(next(iter(account.open)))

    def enter(self, stake: Stake) -> None:
        """A call as it is planned."""
        self._add(stake.name, spent=stake.habit, lost=stake.planned - stake.habit)

    def won(self, name: str) -> float:
        """What plans have cost less than the habit so far."""
        return -self._account(name).lost

    def settle(self, stake: Stake, input_tokens: int, read_tokens: int, written: Mapping[str, int]) -> None:
        """The same call as it was counted."""
        counted = stake.counted(input_tokens, read_tokens, written)
        habit = counted if stake.by_habit else stake.habit * input_tokens / stake.tokens
        lost = counted - habit
        self._add(stake.name, spent=habit - stake.habit, lost=lost - (stake.planned - stake.habit))

    def take(self, pairs: Iterable[tuple[int, Added]]) -> None:
        """What other processes have added."""
        for _, (name, *added) in pairs:
            self._put(name, added)

    def _add(
        self, name: str, *, spent: float = 0.0, lost: float = 0.0, free: float = 0.0, placed: float = 0.0, shown: float = 0.0
    ) -> None:
        added = spent, lost, free, placed, shown
        self._put(name, added)
        if self.fresh is not None:
            self._told += 1
            self.fresh[self._told] = (name, *added)

    def _put(self, name: str, added: Sequence[float]) -> None:
        account = self._account(name)
        account.spent += added[0]
        account.lost += added[1]
        account.free += added[2]
        account.placed += added[3]
        account.shown += added[4]

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account()
        else:
            self._accounts.move_to_end(name)
        if len(self._accounts) > self._most:
            self._accounts.popitem(last=False)
        return account
