"""What a call stands under: budgets, the accounts that they make of whoever pays, and gates, which are rate limits."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote

import msgspec

from gateway.budgets.windows import Kind, zone

Scope = str
"""`team`, `project`, `key`, `user`, `model`, `run`, or `tag:NAME`: whose spending counts together, within a team."""
SCOPES = ("team", "project", "key", "user", "model", "run")
Exhausted = Literal["reject", "downgrade", "alert"]
MOST_NANOS = 2**53 - 1
"""Nine million dollars: integers up to here are exact in JSON and in Lua."""
_MINUTE_US = 60_000_000
_LONGEST = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """Who pays for a call, under every name that a budget may count by."""

    team: str
    project: str | None = None
    key_id: str = ""
    user: str | None = None
    model: str = ""
    run: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)

    def owner(self, scope: Scope) -> str | None:
        """Whose account it is within the team; None: such a budget or limit does not apply to the call."""
        if scope == "team":
            return ""
        if scope == "run":
            return None if self.run is None else f"/run:{_safe(self.run)}"
        if scope.startswith("tag:"):
            value = self.tags.get(scope[4:])
            return None if value is None else f"/tag:{_safe(scope[4:])}:{_safe(value)}"
        if scope == "key":
            return f"/key:{self.key_id}"
        value = self.project if scope == "project" else self.user if scope == "user" else self.model
        return f"/{scope}:{_safe(value or '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRule:
    """A limit on what a team, or each project, key, user, model, run or tag of it, may spend in a window of the calendar."""

    name: str
    limit_nanos: int
    """Nano-dollars. Spend equal to it is over; 0 stops everything."""
    window: Kind = "month"
    timezone: str = "UTC"
    """IANA name; days, weeks (from Monday) and months begin at midnight there."""
    scope: Scope = "team"
    on_exhausted: Exhausted = "reject"
    """`alert` counts and never refuses; what `downgrade` does is the policy's."""
    status: int = 402
    """Of a refusal: 402, or 429 for clients that know no 402."""

    def __post_init__(self) -> None:
        zone(self.timezone)
        if not 0 <= self.limit_nanos <= MOST_NANOS:
            raise ValueError(f"budget {self.name!r}: the limit must lie between 0 and {MOST_NANOS // 10**9} USD")
        if self.window not in get_args(Kind) or not (self.scope in SCOPES or self.scope.startswith("tag:")):
            raise ValueError(f"budget {self.name!r}: unknown window {self.window!r} or scope {self.scope!r}")

    def account(self, payer: Payer) -> Account | None:
        """Whose money it is: `search/cap`, `search/cap/project:web`, `search/cap/key:k_12`."""
        owner = payer.owner(self.scope)
        if owner is None:
            return None
        return account(f"{payer.team}/{self.name}{owner}", self, payer, enforced=self.on_exhausted != "alert")


class Account(msgspec.Struct, frozen=True, array_like=True):
    """One budget of one owner."""

    id: str
    rule: BudgetRule
    payer: Payer
    enforced: bool
    """Whether it may refuse; else it only counts."""
    book: str
    """Its name in a shared store: an account that begins to count by another window or zone is another one there."""


def account(id: str, rule: BudgetRule, payer: Payer, *, enforced: bool = True) -> Account:
    return Account(id, rule, payer, enforced, f"{id}|{rule.window}|{rule.timezone}")


class Gate(NamedTuple):
    """One rate limit of one owner, and how much of it a call takes."""

    id: str
    """`search/requests`, `search/tokens/key:k_12`, `search/concurrent/model:gpt-5.5`, `search/spend/run:r1`; of one prompt also
    its name, `search/same/run:r1/0f3a...`."""
    kind: Literal["requests", "tokens", "concurrent", "spend", "same"]
    limit: int
    """Per minute, of `spend` nano-dollars; for `concurrent` at once."""
    units: int
    """Taken at the start; of `spend` nothing, since what a call costs is known at its end."""
    says: str
    """The limit in words, for the refusal."""

    def take_us(self, units: int) -> int:
        """How long so many units take at the even rate."""
        return -(-units * _MINUTE_US // self.limit)

    def back_us(self, cost_nanos: int, tokens: int | None) -> int:
        """What a call gives back at its end, given what it came to; less than nothing where it takes more."""
        if self.kind == "tokens" and tokens is not None:
            return self.take_us(self.units) - self.take_us(tokens)
        return -self.take_us(cost_nanos) if self.kind == "spend" else 0

    @property
    def burst_us(self) -> int:
        """How far ahead of the even rate one may be: a tenth of a minute's requests, a whole minute's of all else."""
        return _MINUTE_US if self.kind != "requests" else max(_MINUTE_US // 10, self.take_us(1)) + self.take_us(1)


def _safe(text: str) -> str:
    """Any text as part of a name: no separators, no control characters, not endless."""
    return quote(text[:_LONGEST], safe="._-@+")
