"""What a plan costs against the provider's own habit (`habit.py`), what it may lose, and how much of it its account (`bets.py`)
covers. Figures are in tokens at the uncached input price.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gateway.planner.asking import Laid
from gateway.planner.bets import Bets, Limit
from gateway.planner.choice import Choice, Rates
from gateway.planner.habit import has_a_habit
from gateway.planner.likely import agent
from gateway.planner.values import Asked, Planned, Stake

_AUTOMATIC, _LEFT_OUT = Limit(free=1), Limit(free=0)
"""Of writes beside an automatic cache; and of writes left out: OpenAI's habit is a good start."""
_MOST_PROMPTS = 8.0
"""So many times its prompt's tokens may count for or against a client what marks would have won or lost."""
_UNSTORED = Limit(free=2, share=0.008, share_learnt=0.05, learnt_tokens=1e6)
"""Where nothing is stored unasked: a write risks a quarter to win nine tenths. Free are only those of which the request itself
says that it comes again: an agent's by what it is, and one of what is only long."""
_LONG = _UNSTORED._replace(free=1)
_KEPT = Limit(free=1, share=0.008, free_share=0.1)
_KEPT_TRIED = _KEPT._replace(share=0.05)
"""Of long lifetimes where everything is stored anyway: before and after they would have paid for all calls so far."""
_WRONG = 3.0
"""So many times as often as it is thought may come again what was left out."""


class Terms(NamedTuple):
    """One attempt with a client's account. `habit`: what it would cost without plans, of which `read` tokens would be read;
    `sure`: the last place up to which there is reason to think that it comes again, -1: none."""

    asked: Asked
    laid: Laid
    rates: Rates
    habit: float
    read: int
    sure: int

    @property
    def limited(self) -> bool:
        """Whether there is an account: a client's own marks are its own bets."""
        return not self.laid.own.parts

    def covered(self, best: Choice, bets: Bets, again: float, *, under_way: bool) -> Choice:
        """The choice, or as much of it as its account covers. `again`: the chance that the end comes again in time."""
        laid, rules, account = self.laid, self.asked.rules, self.asked.whose.client
        automatic, now_us = rules.automatic_read, self.asked.now_us
        if not self.limited or (automatic and (under_way or best.last < 0)):
            return best  # what was begun with marks is not in the automatic cache
        if not has_a_habit(rules):
            return self._affordable(best, bets)
        bets.came(account, self.asked.page.keys, now_us)
        safe = Choice(len(laid.places) - 1 if rules.ends_are_marked else -1, -1, 0.0)
        unplanned = self.habit if automatic else self._cost(safe)
        limit = _AUTOMATIC if automatic else _LEFT_OUT
        for choice in (best, replace(best, last_long=-1)):
            later = self._missed(choice) * min(1.0, _WRONG * again)
            if not later and self._cost(choice) <= unplanned:
                return choice
            if bets.covers(account, self._cost(choice) + later - self.habit, limit):
                if later and self.asked.first:
                    bets.open(account, self.asked.page.keys[-1], later, now_us + int(next(iter(rules.lives.values())) * 1e6))
                return choice
        return safe

    def _affordable(self, best: Choice, bets: Bets) -> Choice:
        """As much of it as is covered, the beginning first: what stands there is the likeliest to come again."""
        account, before = self.asked.whose.client, max(self.laid.held, self.laid.reach - 1)  # what ends there is not written
        for choice in (best, *[Choice(last, -1, 0.0) for last in range(best.last, before, -1)]):
            if bets.covers(account, self._cost(choice) - self.habit, _UNSTORED, free=False):
                return choice
        choice = replace(best, last=min(best.last, self.sure), last_long=min(best.last_long, self.sure))
        most_lost = self._cost(choice) - self.habit  # what a call reads may pay for what it writes, whatever was lost before
        limit = _UNSTORED if agent(self.laid.page) else _LONG
        if choice.last > before and (most_lost <= 0 or bets.covers(account, most_lost, limit)):
            return choice
        return Choice(-1, -1, 0.0)

    @property
    def short(self) -> Choice:
        """All of it for the short lifetime."""
        return Choice(len(self.laid.places) - 1, -1, 0.0)

    def kept(self, best: Choice, bets: Bets) -> Choice:
        """Whether all of it may be stored for long, where the provider stores it anyway."""
        account = self.asked.whose.client
        limit = _KEPT_TRIED if bets.won(_tried(account)) > 0 else _KEPT
        covered = not self.limited or bets.covers(account, self._cost(best) - self.habit, limit)
        return best if covered else self.short

    def with_marks(self, bets: Bets, known: int) -> None:
        """Notes what marks are worth beside the habit, whatever is chosen: they read `known` tokens, and write the rest."""
        if self.limited and self.asked.first:
            total = self.laid.tokens[-1]
            marked = known * self.rates.read + (total - known) * self.rates.writes[0]
            bets.shown(self.asked.whose.client, self.habit - marked, _MOST_PROMPTS * total)

    def tried(self, bets: Bets, read: int) -> None:
        """Enters in an account of its own what the call would cost if all calls had asked for the long lifetime; `read`: what
        it would find then, tokens. So it is known whether that pays before it is paid for."""
        if self.limited and self.asked.first:
            cost = read * self.rates.read + (self.laid.tokens[-1] - read) * self.rates.writes[-1]
            bets.enter(Stake(_tried(self.asked.whose.client), self.laid.tokens[-1], self.habit, cost, self.rates.read, {}))

    def entered(self, base: Planned, choice: Choice | None = None, *, by_habit: bool = False) -> Planned:
        """With the entry for the account; None: as the provider does it, `by_habit` with all that it would have. Later attempts
        are not counted again."""
        if not self.limited or not self.asked.first:
            return base
        rates = self.rates
        read = rates.automatic_read if choice is None and rates.automatic_read is not None else rates.read
        cost = self.habit if choice is None else self._cost(choice)
        writes = dict(zip(self.asked.rules.lives, rates.writes, strict=False))
        account, tokens = self.asked.whose.client, self.laid.tokens[-1]
        return replace(base, stake=Stake(account, tokens, self.habit, cost, read, writes, by_habit))

    def _cost(self, choice: Choice) -> float:
        """Of this call, so planned."""
        tokens, writes = self.laid.tokens, self.rates.writes
        read = _up_to(tokens, self.laid.held)
        end, long = max(_up_to(tokens, choice.last), read), max(_up_to(tokens, choice.last_long), read)
        return read * self.rates.read + (long - read) * writes[-1] + (end - long) * writes[0] + tokens[-1] - end

    def _missed(self, choice: Choice) -> float:
        """What it costs if the end, which the provider would have stored, comes again and was not."""
        if not self.asked.rules.ends_are_marked:
            return 0.0
        return (self.laid.tokens[-1] - _up_to(self.laid.tokens, choice.last)) * (self.rates.writes[0] - self.rates.read)


def _tried(account: str) -> str:
    return f"{account}:long"


def _up_to(tokens: Sequence[int], place: int) -> int:
    return tokens[place] if place >= 0 else 0
