"""What would save money, found in the sums: missed prefixes, writes that are never read, paid retries, missing prices."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.data import Row


@dataclass(frozen=True, slots=True)
class Advice:
    """`monthly_nanos`: what it would bring in thirty days at the pace of the range; 0 where that cannot be told."""

    title: str
    text: str
    monthly_nanos: int


def found(by_model: Sequence[Row], by_team: Sequence[Row], months: float) -> list[Advice]:
    """The dearest first. `months`: how many of these ranges make thirty days."""
    made = [*_missed(by_model), *_wasted(by_model), *_retried(by_team), *_unpriced(by_team)]
    monthly = [Advice(one.title, one.text, int(one.monthly_nanos * months)) for one in made]
    return sorted(monthly, key=lambda one: -one.monthly_nanos)


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
            text = f"{row.missed:,} of {row.expected:,} expected prefixes missed. The page Caching says why."
            made.append(Advice(title, text, int(lost * price)))
    return made


def _wasted(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(
            f"{row.key[0]}: writes to the cache are not read ({row.key[1]})",
            f"{row.cache_write:,} tokens written, {row.cache_read:,} read: fewer marks, or a longer lifetime.",
            -row.saved_nanos,
        )
        for row in rows if row.cache_write and row.saved_nanos is not None and row.saved_nanos < 0
    ]  # fmt: skip


def _retried(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(
            f"{row.key[0]}: {row.retries / row.attempts:.0%} of attempts are retries",
            "The page Routing says which lane failed.", (row.cost_nanos or 0) * row.retries // row.attempts,
        )
        for row in rows if row.attempts >= 50 and row.retries * 20 > row.attempts
    ]  # fmt: skip


def _unpriced(rows: Sequence[Row]) -> list[Advice]:
    return [
        Advice(f"{row.key[0]}: {row.unpriced:,} attempts have no price", "Add a price row, then run tollway rerate.", 0)
        for row in rows if row.unpriced
    ]  # fmt: skip
