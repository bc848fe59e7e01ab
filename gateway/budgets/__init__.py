"""Money is reserved before an attempt and settled to its real cost after, so that calls at once do not overspend.

A hold reserves the worst case in every budget of a call in one step, or in none; rate limits are passed in the same step.
What would surprise you: a cost counts in the window in which its hold was taken, as the ledger counts it by the call's
arrival; and a cost that is not known (`settle(hold, None)`) is booked at what was held, because unknown is not free. Every
operation is idempotent by the hold's id, so that a store behind a network can be asked again.

    limits.py    budgets, accounts, gates: what a call stands under      memory.py   one process
    windows.py   calendar windows                                        redis.py    many, with the scripts of lua/
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from gateway.budgets.limits import MOST_NANOS, Account, BudgetRule, Gate, Payer, Scope
from gateway.budgets.windows import Kind, Window, zone
from gateway.core.errors import BudgetExceeded, Overloaded, RateLimited
from gateway.core.money import usd

__all__ = [
    "MOST_NANOS", "Account", "AlreadySettled", "BudgetRule", "BudgetState", "Budgets", "Gate", "Hold", "Payer", "Refused",
    "Scope", "Settlement", "Spent", "StoreAway", "TooFast", "Unread",
]  # fmt: skip


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Money reserved for one attempt."""

    id: str
    """The attempt's."""
    amount_nanos: int
    expires_us: int
    """Microseconds by the store's clock; after it the money is free again, whoever forgot it."""
    slots: tuple[tuple[Account, int], ...]
    """Account and start of the window, one for each budget."""
    gates: tuple[Gate, ...] = ()
    """Rate limits that were passed; what was too much of them is given back at the settlement."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What settling did."""

    posted_nanos: int
    over_hold: bool = False
    """The cost was more than had been held; it is booked all the same."""
    repeated: bool = False
    """This id had been settled or released before; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """One budget now, for reports. Times are microseconds since the epoch; None: no end."""

    account: str
    name: str
    team: str
    limit_nanos: int
    spent_nanos: int
    held_nanos: int
    window: Kind
    starts_us: int | None
    ends_us: int | None


class Refused(BudgetExceeded):
    """A budget has no room for the call."""

    def __init__(self, account: Account, spent_nanos: int, held_nanos: int, amount_nanos: int, window: Window) -> None:
        rule = account.rule
        self.account, self.rule = account, rule
        self.spent_nanos, self.held_nanos, self.resets_us = spent_nanos, held_nanos, window.ends_us
        text = f'budget "{rule.name}" of {_short(rule.limit_nanos)} USD per {rule.window} '
        text = text.replace(" per total", " in total")
        if spent_nanos >= rule.limit_nanos:
            text += "is spent"
        else:
            held = f" and {_short(held_nanos)} reserved by calls under way" if held_nanos else ""
            text += f"has no room: {_short(spent_nanos)} spent{held}, and this call may cost {_short(amount_nanos)}"
        super().__init__(f"{text}; {_reset(rule, window)}")
        self.status = rule.status

    @property
    def room_nanos(self) -> int:
        """What the budget still has; a call that names no output limit may be held with one that this pays for."""
        return max(0, self.rule.limit_nanos - self.spent_nanos - self.held_nanos)


class TooFast(RateLimited):
    """A rate limit says no."""

    def __init__(self, gate: Gate, wait_us: int) -> None:
        self.gate, self.wait_us = gate, wait_us
        super().__init__(f"{gate.says} (its policy file)", retry_after_s=max(wait_us / 1e6, 0.001))
        if gate.kind == "same":  # who tries again goes on in the circle
            self.code, self.retry = "same_prompt", False


class StoreAway(Overloaded):
    """Budgets cannot be looked at right now, and what may be spent without looking is spent."""

    code = "budget_store_unavailable"

    def __init__(self, why: str = "budgets cannot be looked at right now") -> None:
        super().__init__(f"{why}; calls of teams without a budget go on", retry_after_s=1)
        self.why = why


class Unread(Exception):
    """The ledger cannot say what a budget has spent."""


class AlreadySettled(RuntimeError):
    """A hold was asked for under an id that is settled: an attempt id was used twice."""


class Spent(NamedTuple):
    """What an account spent, nano-dollars: in all but the last minutes, and by each attempt of those."""

    before: int = 0
    recent: Mapping[str, int] = MappingProxyType({})


class Past(Protocol):
    """Reads from the ledger what an account spent in its present window."""

    async def __call__(self, account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Spent:
        """Attempts since `recent_us` one by one (None: none of them), of those before it not the ids `without`.

        Raises `Unread`.
        """


async def no_past(account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Spent:
    """For budgets that begin with nothing spent."""
    return Spent()


class Budgets(Protocol):
    """Where holds and spend are kept."""

    async def hold(
        self, accounts: Sequence[Account], amount_nanos: int, attempt_id: str, ttl_us: int, gates: Sequence[Gate] = (),
    ) -> Hold:
        """Reserves the amount in all budgets and passes all gates, or none. The same id again gives the same hold.

        Raises `Refused`, `TooFast`, `StoreAway`.
        """

    async def extend(self, hold: Hold, amount_nanos: int, ttl_us: int) -> Hold:
        """Raises a live hold to a new total and a new time, or raises `Refused` and leaves it as it was."""

    def post(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> bool:
        """Settles without waiting for the store; it is told in the end, whatever happens to it meanwhile.

        Whether the cost was more than had been held.
        """

    async def settle(self, hold: Hold, cost_nanos: int | None, tokens: int | None = None) -> Settlement:
        """Books what the attempt cost (None: not known, so what was held) and frees the rest. Counts once."""

    async def release(self, hold: Hold) -> Settlement:
        """Nothing was produced: frees the hold and books nothing."""

    async def seed(self, account: Account, spent_nanos: int) -> None:
        """Sets, never adds, what the ledger says was spent in the present window."""

    async def correct(self, account: Account, correction_id: str, delta_nanos: int, at_us: int) -> None:
        """Moves what was spent, once for an id, if `at_us` lies in the present window of an account that is in use."""

    async def snapshot(self) -> list[BudgetState]:
        """Every budget that was used or seeded, in its present window."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def mode(self) -> str:
        """`normal`; or `lease` or `closed`: how calls are judged while the store is away."""

    @property
    def problem(self) -> str | None:
        """Why the mode is not normal."""

    @property
    def pending(self) -> int:
        """Settlements that the store has not confirmed."""


def _short(nanos: int) -> str:
    whole, _, fraction = (usd(nanos) or "").partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


def _reset(rule: BudgetRule, window: Window) -> str:
    if window.ends_us is None:
        return "it does not reset: ask its owner to raise it"
    return f"it resets at {datetime.fromtimestamp(window.ends_us // 1_000_000, zone(rule.timezone)).isoformat()}"
