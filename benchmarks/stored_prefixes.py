"""What renting storage for a prompt's fixed beginning costs and saves at Gemini, by how often it is asked for.

    python -m benchmarks.stored_prefixes [--days N] [--json]

Calls come at random (Poisson) with one beginning of 50,000 tokens, each with words of its own that are left out here. `by
itself` is what the beginning costs where the provider's own cache keeps it five minutes after each use; `stored` is the same
with the gateway's rule (`planner/heads.py`) and its quarters of an hour, the making and the storage of objects included.
Prices are the book's.
"""
from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.table import Table

from gateway.core.usage import TokenUsage
from gateway.metering import prices
from gateway.metering.prices import Offer
from gateway.planner.heads import Head, Heads, Rent, Stored
from gateway.storing import LIFE_S, RENEW_S, TIER

TOKENS, OWN_LIFE_S = 50_000, 300.0
MODELS = ("gemini-3.8-flash", "gemini-3.5-flash", "gemini-2.5-flash", "gemini-2.5-pro")
RATES_PER_HOUR = (0.5, 1, 2, 4, 8, 12, 20, 40, 80)


@dataclass(frozen=True, slots=True)
class Result:
    """Dollars."""

    model: str
    per_hour: float
    by_itself: float
    stored: float
    objects: int


def rent_of(model: str) -> Rent:
    """As the price book has it today."""
    book, now_us = prices.load(), time.time_ns() // 1_000
    rates = book.rates(Offer("google", model), now_us)
    an_hour = TokenUsage(uncached=0, output=0, other={"stored_token_hours": 1_000_000})
    hour = book.price(Offer("google", model, TIER), an_hour, now_us).cost_nanos
    assert rates is not None
    assert rates.uncached is not None
    assert rates.cached is not None
    assert hour is not None
    return Rent((rates.uncached - rates.cached) / 1e12, hour / 1e15, rates.uncached / 1e12)


def arrivals(per_hour: float, days: float, seed: int) -> Iterator[float]:
    """Seconds."""
    rng, at_s = random.Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(per_hour / 3_600)) < days * 86_400:
        yield at_s


def run(model: str, per_hour: float, days: float = 10.0, seed: int = 1) -> Result:
    """One beginning, one model."""
    rent, heads, head = rent_of(model), Heads(), Head(1, TOKENS, 1)
    alone = paid = 0.0
    last_s, alone_s, made = -1e9, -1e9, 0
    turns = [(float(n), False) for n in range(0, int(days * 86_400), 10)]
    for at_s, call in sorted([*turns, *((at_s, True) for at_s in arrivals(per_hour, days, seed))]):
        now_us = int(at_s * 1e6)
        stored = heads.object(1, now_us)
        if call:
            alone += _once(rent, read=at_s - alone_s < OWN_LIFE_S)
            found = at_s - last_s < OWN_LIFE_S
            paid += _once(rent, read=stored is not None or found)
            heads.came(head, now_us, OWN_LIFE_S, read=None if stored else found, latest=lambda: None)
            last_s = alone_s = at_s
            continue
        known, until_us = heads.known.get(1), heads.stored.get(1, Stored("", 0)).until_us
        due = stored is None or until_us - now_us < RENEW_S * 1e6
        if known is not None and due and known.worth(rent, now_us, new=stored is None):
            made += stored is None
            paid += TOKENS * (rent.hour * LIFE_S / 3_600 + rent.once * (stored is None))
            heads.keep(1, Stored("object", max(until_us, now_us) + int(LIFE_S * 1e6)))
    return Result(model, per_hour, alone, paid, made)


def _once(rent: Rent, *, read: bool) -> float:
    return TOKENS * (rent.once - rent.saved * read)


@click.command(help=__doc__)
@click.option("--days", default=10.0, help="simulated days a row")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(days: float, as_json: bool) -> None:
    found = [run(model, per_hour, days) for model in MODELS for per_hour in RATES_PER_HOUR]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = Table("model", "calls an hour", "by itself, $", "stored, $", "ratio", "objects made")
    for one in found:
        ratio = one.stored / one.by_itself
        dollars = f"{one.by_itself:.2f}", f"{one.stored:.2f}"
        table.add_row(one.model, f"{one.per_hour:g}", *dollars, f"{ratio:.3f}", str(one.objects))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
