"""Money is reserved before an attempt and settled to its real cost after, so that calls at once do not overspend.

A hold reserves the worst case in every budget of a call in one step, or in none. What would surprise you: a cost counts in
the window in which its hold was taken, as the ledger counts it by the call's arrival; and a cost that is not known
(`settle(hold, None)`) is booked at what was held, because unknown is not free. Every operation is idempotent by the hold's
id, so that a store behind a network can be asked again: one atomic script there, with the store's clock.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, get_args

from gateway.budgets.windows import Kind, Window, zone
from gateway.core.call import Tenant
from gateway.core.errors import BudgetExceeded
from gateway.core.money import usd

Scope = Literal["team", "project", "key"]
MOST_NANOS = 2**53 - 1
"""Nine million dollars: integers up to here are exact in JSON and in Lua."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRule:
    """A limit on what a team, each of its projects or each of its keys may spend in a window of the calendar."""

    name: str
    limit_nanos: int
    """Nano-dollars. Spend equal to it is over; 0 stops everything."""
    window: Kind = "month"
    timezone: str = "UTC"
    """IANA name; days, weeks (from Monday) and months begin at midnight there."""
    scope: Scope = "team"

    def __post_init__(self) -> None:
        zone(self.timezone)
        if not 0 <= self.limit_nanos <= MOST_NANOS:
            raise ValueError(f"budget {self.name!r}: the limit must lie between 0 and {MOST_NANOS // 10**9} USD")
        if self.window not in get_args(Kind) or self.scope not in get_args(Scope):
            raise ValueError(f"budget {self.name!r}: unknown window {self.window!r} or scope {self.scope!r}")

    def account(self, tenant: Tenant) -> str:
        """Whose money it is: `search/cap`, `search/cap/project:web`, `search/cap/key:k_12`."""
        owner = {"team": "", "project": f"/project:{tenant.project or ''}", "key": f"/key:{tenant.key_id}"}[self.scope]
        return f"{tenant.team}/{self.name}{owner}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Money reserved for one attempt."""

    id: str
    """The attempt's."""
    amount_nanos: int
    expires_us: int
    """Microseconds since the epoch; after it the money is free again, whoever forgot it."""
    slots: tuple[tuple[str, int], ...]
    """Account and start of the window, one for each budget."""


@dataclass(frozen=True, slots=True)
class Settlement:
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

    def __init__(self, rule: BudgetRule, spent_nanos: int, held_nanos: int, amount_nanos: int, window: Window) -> None:
        self.rule, self.spent_nanos, self.held_nanos, self.resets_us = rule, spent_nanos, held_nanos, window.ends_us
        text = f'budget "{rule.name}" of {_short(rule.limit_nanos)} USD per {rule.window} '
        text = text.replace(" per total", " in total")
        if spent_nanos >= rule.limit_nanos:
            text += "is spent"
        else:
            held = f" and {_short(held_nanos)} reserved by calls under way" if held_nanos else ""
            text += f"has no room: {_short(spent_nanos)} spent{held}, and this call may cost {_short(amount_nanos)}"
        super().__init__(f"{text}; {_reset(rule, window)}")

    @property
    def room_nanos(self) -> int:
        """What the budget still has; a call that names no output limit may be held with one that this pays for."""
        return max(0, self.rule.limit_nanos - self.spent_nanos - self.held_nanos)


class AlreadySettled(RuntimeError):
    """A hold was asked for under an id that is settled: an attempt id was used twice."""


class Budgets(Protocol):
    """Where holds and spend are kept."""

    async def hold(
        self, tenant: Tenant, rules: Sequence[BudgetRule], amount_nanos: int, attempt_id: str, expires_us: int,
    ) -> Hold:
        """Reserves the amount in all budgets or in none. Raises `Refused`. The same id again gives the same hold."""

    async def extend(self, hold: Hold, rules: Sequence[BudgetRule], amount_nanos: int, expires_us: int) -> Hold:
        """Raises a live hold to a new total and expiry, or raises `Refused` and leaves it as it was."""

    async def settle(self, hold: Hold, cost_nanos: int | None) -> Settlement:
        """Books what the attempt cost (None: not known, so what was held) and frees the rest. Counts once."""

    async def release(self, hold: Hold) -> Settlement:
        """Nothing was produced: frees the hold and books nothing."""

    async def seed(self, tenant: Tenant, rule: BudgetRule, spent_nanos: int) -> None:
        """Sets, never adds, what the ledger says was spent in the present window."""

    async def snapshot(self) -> list[BudgetState]:
        """Every budget that was used or seeded, in its present window."""


def _short(nanos: int) -> str:
    whole, _, fraction = (usd(nanos) or "").partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


def _reset(rule: BudgetRule, window: Window) -> str:
    if window.ends_us is None:
        return "it does not reset: ask its owner to raise it"
    return f"it resets at {datetime.fromtimestamp(window.ends_us // 1_000_000, zone(rule.timezone)).isoformat()}"
