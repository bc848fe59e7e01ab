"""What a token costs by the price book, where only one side has it, and what a line of the ledger cost class by class."""
from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from fractions import Fraction
from typing import Any, NamedTuple

from gateway.core.usage import TokenUsage
from gateway.ledger.days import day_range
from gateway.ledger.lines import LedgerLine
from gateway.metering.charge import WRITES
from gateway.metering.prices import PROVIDERS, Offer, PriceBook
from gateway.metering.rows import Row

_COLUMNS: Mapping[str, tuple[str, ...]] = {"uncached": ("input",), "cache_read": ("cached",), "output": ("output",)}
_SAMPLE = 1_000
"""Tokens of the question to the book: few enough for every base band."""


class Place(NamedTuple):
    """Where tokens were served; None: the bill does not say."""

    tier: str | None
    region: str | None


class Rates:
    def __init__(self, book: PriceBook, provider: str) -> None:
        self._book, self._provider = book, provider
        self._rows: Mapping[str, Row] = {row.id: row for row in book.rows()}
        self._known: dict[tuple[Any, ...], Fraction | None] = {}

    def nanos(self, day: str, model: str, place: Place, kind: str) -> Fraction | None:
        """Nano-dollars per token of a class on a day; None: no row says."""
        key = (day, model, place, kind)
        if key not in self._known:
            self._known[key] = self._ask(*key)
        return self._known[key]

    def tiers(self, model: str) -> list[str]:
        return sorted({row.tier for row in self._book.rows(self._provider, model)})

    def factors(self) -> dict[Fraction, str]:
        """Surcharges of regions: factor -> a region that has it."""
        name = PROVIDERS.get(self._provider, self._provider)
        sections = [file[name] for file in self._book.files if name in file]
        return {Fraction(rule.num, rule.den): rule.region for section in sections for rule in section.regions}

    def _ask(self, day: str, model: str, place: Place, kind: str) -> Fraction | None:
        if kind == "other":
            return None
        tokens: dict[str, Any] = {"uncached": 0, "output": 0}
        if kind.startswith("write_"):
            tokens["cache_write"] = {kind.removeprefix("write_"): _SAMPLE}
        else:
            tokens[kind] = _SAMPLE
        at = date.fromisoformat(day)
        noon = sum(day_range(at, at, "UTC")) // 2
        priced = self._book.price(Offer(self._provider, model, place.tier, place.region or None), TokenUsage(**tokens), noon)
        return None if priced.cost_nanos is None else Fraction(priced.cost_nanos, _SAMPLE)

    def by_class(self, line: LedgerLine) -> dict[str, int]:
        """What each class of a line cost, by the rows that it names; what they do not explain is `other`."""
        base = next((self._rows[name] for name in line.rows if name in self._rows), None)
        if base is None:
            return self._by_weight(line)
        factor = region_factor(line.rows)
        costs = {
            kind: round(tokens * Fraction(rate, 1_000) * factor)
            for kind, tokens in line.tokens.items() if tokens and (rate := rate_of(base, kind)) is not None
        }  # fmt: skip
        left = line.cost_nanos - sum(costs.values())
        if costs and abs(left) <= 2 * line.attempts:    # each entry was rounded up
            costs[max(costs, key=lambda kind: costs[kind])] += left
        elif left:
            costs["other"] = left
        return costs

    def _by_weight(self, line: LedgerLine) -> dict[str, int]:
        """By rows that no file has any more: the cost, parted as today's rates would part it."""
        place = Place(line.tier, region_of(line.rows))
        worth = {kind: n * (self.nanos(line.day, line.model, place, kind) or 0) for kind, n in line.tokens.items() if n}
        whole = sum(worth.values())
        if not whole:
            return {"other": line.cost_nanos} if line.cost_nanos else {}
        costs = {kind: round(line.cost_nanos * part / whole) for kind, part in worth.items()}
        costs[max(costs, key=lambda kind: costs[kind])] += line.cost_nanos - sum(costs.values())
        return costs


def rate_of(row: Row, kind: str) -> int | None:
    """A row's rate for a class, micro-dollars per million tokens."""
    names = _COLUMNS.get(kind) or WRITES.get(kind.removeprefix("write_"), (kind,))
    return next((row.rates[name] for name in names if name in row.rates), None)


def region_of(rows: tuple[str, ...]) -> str:
    """The place that rows price for; "": none in particular."""
    for row in rows:
        for mark in ("#region:", "@region:"):
            _, found, rest = row.partition(mark)
            if found:
                return rest.partition("#")[0].partition(">")[0] if mark[0] == "#" else rest.rpartition("x")[0]
    return ""


def region_factor(rows: tuple[str, ...]) -> Fraction:
    for row in rows:
        _, found, rest = row.partition("@region:")
        if found:
            return Fraction(rest.rpartition("x")[2])
    return Fraction(1)

