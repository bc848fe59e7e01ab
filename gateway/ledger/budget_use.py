"""How far each budget is spent, by the ledger: what alerts and the dashboard's page on budgets both show."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.money import usd
from gateway.ledger.days import Window, window_end, window_start
from gateway.ledger.measures import Row
from gateway.ledger.reports import Reports
from gateway.ledger.slices import DIMENSIONS, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A budget of a policy file."""

    team: str
    name: str
    limit_nanos: int
    window: Window
    tz: str
    scope: str = "team"
    """`team`, or a dimension of reports: each of its values has the budget for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One owner's budget in its present window."""

    limit: Limit
    owner: str
    """The team, or the project or key within it."""
    spent_nanos: int
    """As budgets count: with what was held for attempts of unknown cost."""
    since_us: int
    until_us: int | None
    unpriced: int = 0
    """Attempts of unknown cost."""
    held_nanos: int = 0
    """The part of `spent_nanos` that was held for them."""

    @property
    def unknown(self) -> str:
        """What people are told of attempts of unknown cost; empty where there are none."""
        if not self.unpriced:
            return ""
        attempts = "1 attempt" if self.unpriced == 1 else f"{self.unpriced:,} attempts"
        return f"the cost of {attempts} is unknown and counts with the ${float(usd(self.held_nanos) or 0):,.2f} held for it"

    @property
    def share(self) -> float:
        return self.spent_nanos / self.limit.limit_nanos if self.limit.limit_nanos else 1.0

    def forecast_nanos(self, now_us: int) -> int | None:
        """Spent by the window's end if it goes on as it went; None where there is no end or it has hardly begun."""
        if self.until_us is None or now_us - self.since_us < (self.until_us - self.since_us) // 100:
            return None
        return self.spent_nanos * (self.until_us - self.since_us) // (now_us - self.since_us)

    def empty_us(self, now_us: int) -> int | None:
        """When it is spent if it goes on so; None where that is not within the window."""
        left, passed = self.limit.limit_nanos - self.spent_nanos, now_us - self.since_us
        if left <= 0:
            return now_us
        if not self.spent_nanos or not self.since_us:
            return None
        at_us = now_us + left * passed // self.spent_nanos
        return at_us if self.until_us is None or at_us < self.until_us else None


def uses(reports: Reports, limits: Iterable[Limit], now_us: int) -> list[Use]:
    """The fullest first; of projects and keys those that spent something."""
    found = [use for limit in limits if limit.scope in ("team", *DIMENSIONS) for use in _uses(reports, limit, now_us)]
    return sorted(found, key=lambda use: -use.share)


def _uses(reports: Reports, limit: Limit, now_us: int) -> Sequence[Use]:
    since = window_start(limit.window, limit.tz, now_us)
    until = window_end(limit.window, limit.tz, now_us)
    part = Slice(since_us=since, where={"team": limit.team})
    sums = reports.spend(() if limit.scope == "team" else (limit.scope,), part)
    rows: dict[str | None, Row] = {None: sums.total} if limit.scope == "team" else {row.key[0]: row for row in sums.rows}
    scope = None if limit.scope == "team" else limit.scope
    held = reports.held_for_unknown(part, scope) if sums.total.unpriced else {}
    return [
        Use(
            limit=limit, owner=limit.team if scope is None else owner or "(none)", since_us=since, until_us=until,
            spent_nanos=(row.cost_nanos or 0) + held.get(owner, 0), unpriced=row.unpriced, held_nanos=held.get(owner, 0),
        )
        for owner, row in rows.items()
    ]
