"""The ledger's sums -> alerts. Each rule is a function of reports and a moment; bounds stand in `alerts:` of tollway.yaml."""
from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.alerts import Alert
from gateway.core.money import usd
from gateway.ledger.budget_use import Limit, uses
from gateway.ledger.days import DAY_US, HOUR_US, instant
from gateway.ledger.measures import Row
from gateway.ledger.reports import Reports
from gateway.ledger.slices import Slice

_QUIET_HOURS = 6
"""A jump, a drop or a breach is told again after this many hours, if it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """When to speak up."""

    budget_levels: Sequence[int] = (50, 80, 100)
    """Per cent of a budget."""
    spend_times: float = 3.0
    """An hour that costs this many times the median hour of the week before."""
    spend_least_nanos: int = 1_000_000_000
    """And at least this much."""
    cache_points: float = 20.0
    """Percentage points by which the hour's cache share lies below that of the day before."""
    cache_least_tokens: int = 100_000
    first_token_p95_ms: Mapping[str, float] = field(default_factory=dict)
    """By lane, over the last hour."""
    latency_least_attempts: int = 20


def found(reports: Reports, limits: Iterable[Limit], bounds: Bounds, now_us: int) -> list[Alert]:
    """All that is worth telling now. Raises `LedgerUnavailable`."""
    return [
        *budgets(reports, limits, bounds, now_us), *spend(reports, bounds, now_us), *cache(reports, bounds, now_us),
        *latency(reports, bounds, now_us),
    ]  # fmt: skip


def budgets(reports: Reports, limits: Iterable[Limit], bounds: Bounds, now_us: int) -> Iterator[Alert]:
    """The highest level that a budget reached in its window."""
    for use in uses(reports, limits, now_us):
        level = max((level for level in bounds.budget_levels if use.share * 100 >= level), default=None)
        if level is None:
            continue
        limit, spent = use.limit, _dollars(use.spent_nanos)
        whose = limit.team if limit.scope == "team" else f"{limit.team}, {limit.scope} {use.owner}"
        ends = "it has no end"
        if use.until_us is not None:
            ends = f"it resets {instant(use.until_us, limit.tz):%d %b %H:%M} {limit.tz}"
        yield Alert(
            id=f"budget/{limit.team}/{limit.name}/{use.owner}/{use.since_us}/{level}", kind="budget", team=limit.team,
            title=f"{whose}: {level} % of budget {limit.name} is spent", at_us=now_us,
            level="critical" if level >= 100 else "warning",
            text=f"{spent} of {_dollars(limit.limit_nanos)} this {limit.window}; "
            + (f"{use.unknown}; {ends}." if use.unpriced else f"{ends}."),
        )  # fmt: skip


def spend(reports: Reports, bounds: Bounds, now_us: int) -> Iterator[Alert]:
    """An hour that costs far more than a team's hours do."""
    hour = now_us - HOUR_US
    usual: dict[str, list[int]] = {}
    for row in reports.spend(("hour", "team"), Slice(since_us=hour - 7 * DAY_US, until_us=hour)).rows:
        usual.setdefault(row.key[1] or "", []).append(row.cost_nanos or 0)
    for row in reports.spend(("team",), Slice(since_us=hour, until_us=now_us)).rows:
        team, cost = row.key[0] or "", row.cost_nanos or 0
        if len(usual.get(team, ())) < 3:        # nothing to compare with
            continue
        median = statistics.median(usual[team])
        if cost >= bounds.spend_least_nanos and cost >= bounds.spend_times * median:
            yield Alert(
                id=_spell("spend", team, now_us), kind="spend", team=team, at_us=now_us, title=f"{team}: spend jumped",
                text=f"{_dollars(cost)} in the last hour; the median hour of the week before was {_dollars(int(median))}. "
                f"{row.calls:,} calls."
                + (f" The cost of {row.unpriced:,} attempts is unknown and not among it." if row.unpriced else ""),
            )  # fmt: skip


def cache(reports: Reports, bounds: Bounds, now_us: int) -> Iterator[Alert]:
    """A share of cached tokens that fell, and what is new since: a deploy changes a prompt, or its client's name."""
    last = Slice(since_us=now_us - HOUR_US, until_us=now_us)
    day = Slice(since_us=now_us - HOUR_US - DAY_US, until_us=now_us - HOUR_US)
    before = {row.key[0]: row for row in reports.spend(("team",), day).rows}
    for row in reports.spend(("team",), last).rows:
        team, old = row.key[0] or "", before.get(row.key[0])
        if old is None or not _fell(row, old, bounds):
            continue
        clients = set(reports.values("client", last.only(team=team))) - set(reports.values("client", day.only(team=team)))
        kinds = sorted(reports.spend(("miss",), last.only(team=team)).rows, key=lambda r: -r.missed)
        why = ", ".join(f"{r.key[0]} {r.missed:,} times" for r in kinds[:3] if r.key[0] is not None)
        new = f" New clients since: {', '.join(sorted(clients)[:3])}." if clients else ""
        yield Alert(
            id=_spell("cache", team, now_us), kind="cache", team=team, at_us=now_us, title=f"{team}: the cache share fell",
            text=f"{_share(row)} of prompt tokens came from a cache in the last hour, {_share(old)} in the day before."
            + (f" Prefixes missed: {why}." if why else "") + new,
        )  # fmt: skip


def _fell(now: Row, old: Row, bounds: Bounds) -> bool:
    if now.input_total < bounds.cache_least_tokens or old.input_total < bounds.cache_least_tokens:
        return False
    return ((old.cache_share or 0) - (now.cache_share or 0)) * 100 >= bounds.cache_points


def latency(reports: Reports, bounds: Bounds, now_us: int) -> Iterator[Alert]:
    """A lane whose callers wait longer for the first token than the operator wants."""
    if not bounds.first_token_p95_ms:
        return
    for q in reports.latency(("lane",), Slice(since_us=now_us - HOUR_US, until_us=now_us)):
        most = bounds.first_token_p95_ms.get(q.key[0] or "")
        if most is not None and q.count >= bounds.latency_least_attempts and q.p95 > most:
            yield Alert(
                id=_spell("latency", q.key[0] or "", now_us), kind="latency", team="", at_us=now_us,
                title=f"lane {q.key[0]}: first tokens are late",
                text=f"p95 {q.p95:,.0f} ms over the last hour, the bound is {most:,.0f} ms; {q.count:,} attempts.",
            )  # fmt: skip


def _spell(kind: str, what: str, now_us: int) -> str:
    return f"{kind}/{what}/{now_us // (_QUIET_HOURS * HOUR_US)}"


def _dollars(nanos: int) -> str:
    return f"${float(usd(nanos) or 0):,.2f}"


def _share(row: Row) -> str:
    return f"{(row.cache_share or 0) * 100:.0f} %"
