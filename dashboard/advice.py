"""What would save money: causes of missed prefixes; in the sums writes that are never read, paid retries, missing prices."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.data import ADVICE, WORDS, Cause, Row

MONTH_US = 30 * 86_400_000_000
UNPRICED = "They are in no sum of money. Add a price row, then run tollway rerate."


@dataclass(frozen=True, slots=True)
class Advice:
    """`monthly_nanos`: what it would bring in thirty days at the pace of the range; None where that cannot be told."""

    team: str
    title: str
    text: str
    monthly_nanos: int | None
    page: str = "Caching"
    """That tells more."""


def found(by_model: Sequence[Row], by_team: Sequence[Row], months: float, known: Sequence[Advice] = ()) -> list[Advice]:
    """The dearest first. `months`: how many of these ranges make thirty days. `known`: causes of misses, which tell more than
    the sums of a team do."""
    told = {one.team for one in known}
    made = [*_missed([row for row in by_model if row.key[0] not in told]), *_wasted(by_model), *_retried(by_team)]
    monthly = [Advice(one.team, one.title, one.text, int((one.monthly_nanos or 0) * months), one.page) for one in made]
    return sorted([*known, *monthly, *_unpriced(by_team)], key=lambda one: -(one.monthly_nanos or 0))


def causes(found: Sequence[Cause], months: float) -> list[Advice]:
    """Of each team and kind of miss, the dearest first."""
    groups: dict[tuple[str, str], list[Cause]] = {}
    for cause in found:
        groups.setdefault((cause.team, cause.kind), []).append(cause)
    made = [_cause(team, kind, group, months) for (team, kind), group in groups.items() if kind != "below_minimum"]
    return sorted(made, key=lambda one: -(one.monthly_nanos or 0))


def _cause(team: str, kind: str, group: Sequence[Cause], months: float) -> Advice:
    """`group`: the dearest first; it says where."""
    known, first = [cause.lost_nanos for cause in group if cause.lost_nanos is not None], group[0]
    where = f" at {first.path}" if first.path else ""
    title = f"{team}: caches miss because of {WORDS.get(kind, kind)}"
    text = f"{sum(cause.calls for cause in group):,} calls, most{where} of {first.client or 'an app'} with {first.model}."
    return Advice(team, title, f"{text} {ADVICE.get(kind, '')}.", int(sum(known) * months) if known else None)


def _missed(rows: Sequence[Row]) -> list[Advice]:
    """Tokens that were expected in a cache and computed anew, at what uncached ones cost more than cached ones did."""
    made = []
    for row in rows:
        lost = row.predicted_read - row.expected_read
        if lost <= 0 or not row.uncached or not row.cache_read:
            continue
        price = row.uncached_nanos / row.uncached - row.cache_read_nanos / row.cache_read
        if price > 0:
            title = f"{row.key[0]}: mend prompts that miss the cache ({row.key[1]})"
            text = f"{row.missed:,} of {row.expected:,} expected prefixes missed."
            made.append(Advice(row.key[0] or "", title, text, int(lost * price)))
    return made


def _wasted(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(
            row.key[0] or "", f"{row.key[0]}: writes to the cache are not read ({row.key[1]})",
            f"{row.cache_write:,} tokens written, {row.cache_read:,} read: fewer marks, or a longer lifetime.",
            -row.saved_nanos,
        )
        for row in rows if row.cache_write and row.saved_nanos is not None and row.saved_nanos < 0
    ]  # fmt: skip


def _retried(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(
            row.key[0] or "", f"{row.key[0]}: {row.retries / row.attempts:.0%} of attempts are retries",
            "Each is paid for by waiting, and often in money.", (row.cost_nanos or 0) * row.retries // row.attempts,
            "Routing",
        )
        for row in rows if row.attempts >= 50 and row.retries * 20 > row.attempts
    ]  # fmt: skip


def _unpriced(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(row.key[0] or "", f"{row.key[0]}: {row.unpriced:,} attempts have no price", UNPRICED, None, "Spend")
        for row in rows if row.unpriced
    ]  # fmt: skip
