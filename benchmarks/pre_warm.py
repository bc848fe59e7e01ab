"""What writing a beginning ahead of known traffic costs and saves, morning by morning.

    python -m benchmarks.pre_warm [--days N] [--seeds N] [--json]

Conversations with one beginning of 50,000 tokens come around the same time of each day; what else they send is left out. `by
itself` is what the beginning costs where the first call writes it for five minutes, and how long calls wait for what is
computed, by a lane's pace of 10,000 tokens a second; `ahead` is the same with the gateway's rule (`planner/arrivals.py`), the
calls that write ahead included. `sum` is money and the wait at its class's value, ahead over by itself. Prices are the book's.
"""
from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.table import Table

from gateway import caching
from gateway.metering import prices
from gateway.planner.arrivals import LEAD_S, Arrivals, Offer
from gateway.planner.caches import rules_of
from gateway.planner.values import Beginning, Life
from router_policies.presets import CLASSES

TOKENS, TOKENS_PER_S, MODEL = 50_000, 10_000, "claude-sonnet-4-6"
_DAY_US = 86_400_000_000

Morning = Callable[[random.Random], list[float]]
"""When conversations come on one day, seconds after the time that the policy names."""


def _fleet(rng: random.Random) -> list[float]:
    return [rng.uniform(0, 1) for _ in range(10)]


def _office(rng: random.Random) -> list[float]:
    return [rng.uniform(0, 1_800) for _ in range(10)]


def _late(rng: random.Random) -> list[float]:
    return [1_200 + rng.uniform(0, 1) for _ in range(10)]


def _three_in_ten(rng: random.Random) -> list[float]:
    return _fleet(rng) if rng.random() < 0.3 else []


def _one(rng: random.Random) -> list[float]:
    return [rng.uniform(0, 60)]


def _any_time(rng: random.Random) -> list[float]:
    return [rng.uniform(-43_200, 43_200) for _ in range(10)]


MORNINGS: Mapping[str, Morning] = {
    "ten at once": _fleet, "ten in half an hour": _office, "ten at once, 20 minutes late": _late,
    "ten on three days in ten": _three_in_ten, "one a day": _one, "ten at any time of day": _any_time,
}  # fmt: skip
ROWS = [
    (morning, klass, together)
    for morning in MORNINGS
    for klass, together in (("interactive", True), ("agent", True), ("agent", False), ("batch", True), ("batch", False))
]


@dataclass(frozen=True, slots=True)
class Result:
    """Over all days: dollars, seconds that calls waited, calls that wrote ahead; `sum`: ahead over by itself, waits valued."""

    traffic: str
    klass: str
    together: bool
    by_itself_usd: float
    ahead_usd: float
    by_itself_wait_s: float
    ahead_wait_s: float
    written: float
    sum: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the whole beginning, dollars."""

    read_usd: float
    lives: tuple[Life, ...]

    @property
    def offered(self) -> Beginning:
        return Beginning(1, TOKENS, 1, self.lives, self.lives[0].write_usd - self.read_usd)


def prices_of(model: str) -> Prices:
    """As the price book has it today."""
    row, rules = caching.rates_of(prices.load())("anthropic", model, None), rules_of("anthropic", model, "anthropic_messages")
    assert row is not None
    assert rules is not None
    lives = tuple(Life(name, seconds, TOKENS * row[f"write_{name}"] / 1e12) for name, seconds in rules.lives.items())
    return Prices(TOKENS * row["cached"] / 1e12, lives)


def day(came: Sequence[float], price: Prices, ahead: Life | None, *, together: bool) -> tuple[float, float]:
    """Dollars and seconds waited of one day's calls, in order. `ahead`: for how long it was written before them."""
    wait_s = TOKENS / TOKENS_PER_S
    usd, waited_s, begun_s, until_s, life_s = 0.0, 0.0, -1e9, -1e9, price.lives[0].seconds
    if ahead is not None:
        usd, life_s = ahead.write_usd, ahead.seconds
        begun_s, until_s = wait_s - LEAD_S, ahead.seconds - LEAD_S
    for at_s in came:
        late_s = begun_s - at_s
        if at_s >= until_s:  # nobody has written it
            begun_s, life_s = at_s + wait_s, price.lives[0].seconds
            usd, waited_s = usd + price.lives[0].write_usd, waited_s + wait_s
        elif late_s > 0 and not together:
            usd, waited_s = usd + price.lives[0].write_usd, waited_s + wait_s
        else:
            usd, waited_s = usd + price.read_usd, waited_s + max(late_s, 0.0)
        until_s = max(until_s, at_s + life_s)
    return usd, waited_s


def run(traffic: str, klass: str, *, together: bool, days: int = 20, seeds: int = 100) -> Result:
    """Mean of the seeds."""
    price, value = prices_of(MODEL), CLASSES[klass].value_usd_per_s
    offer = Offer(price.offered, TOKENS / TOKENS_PER_S, together)
    alone = alone_s = paid = paid_s = written = 0.0
    for seed in range(seeds):
        rng, arrivals = random.Random(seed), Arrivals()
        for number in range(1, days + 1):
            time_us = number * _DAY_US
            arrivals.expect(1, time_us)
            best = arrivals.worth(1, time_us, offer)
            came = sorted(MORNINGS[traffic](rng))
            for at_s in came:
                if -LEAD_S <= at_s < 3_600:
                    arrivals.came(1, time_us, time_us + int(at_s * 1e6), value)
            # what came before it is written, and until the next time, is the same with and without
            usd, wait_s = day(came, price, None, together=together)
            with_usd, with_s = day(came, price, None if best is None else best[0], together=together)
            alone, alone_s, paid, paid_s = alone + usd, alone_s + wait_s, paid + with_usd, paid_s + with_s
            written += best is not None
    found = [each / seeds for each in (alone, paid, alone_s, paid_s, written)]
    return Result(traffic, klass, together, *found, sum=(found[1] + value * found[3]) / (found[0] + value * found[2]))


@click.command(help=__doc__)
@click.option("--days", default=20, help="mornings in a row")
@click.option("--seeds", default=100, help="draws of the traffic, of which it is the mean")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(days: int, seeds: int, as_json: bool) -> None:
    found = [run(traffic, klass, together=together, days=days, seeds=seeds) for traffic, klass, together in ROWS]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = Table("traffic", "class", "calls wait", "by itself, $", "ahead, $", "waits, s", "ahead, s", "written", "sum")
    for one in found:
        dollars = f"{one.by_itself_usd:.2f}", f"{one.ahead_usd:.2f}", f"{one.by_itself_wait_s:.0f}", f"{one.ahead_wait_s:.0f}"
        words = one.traffic, one.klass, "yes" if one.together else "no"
        table.add_row(*words, *dollars, f"{one.written:.1f} of {days}", f"{one.sum:.3f}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
