"""What the broker's decision saves: the same traffic, the same luck, other routers and a clairvoyant bound beside it.

    python -m benchmarks.broker [--trace FILE ...] [--part families|hot-spot|decision] [--scenario NAME ...] [--quick] [--json]

Traces are read from ../shared/data where they lie (Azure code and conversation, Mooncake), cut into calls that interactive
people, agents and batch jobs send (30 : 35 : 35 by conversation, dealt out by a hash). The menu
(`router_policies/menus.py`) has a provider's tiers at real price ratios (priority 2, standard 1, flex 0.5; a cached token
costs a tenth) and a pool of one's own at 0.6. Routers are compared in dollars; one that misses more deadlines is not
cheaper, and the table says so. The bounds are of what the policy asks for, dollars and the value of waiting together: the
`clairvoyant` one sees each wait before it happens, which nothing that lives in time can; the `informed` one knows all but that.
Both have every cache filled by every call, which two caches cannot be: the figure in `hindsight` has the broker's own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from zlib import crc32

from rich.console import Console
from rich.table import Table

from benchmarks.broker_bounds import bound
from router_policies.backtest import router, run
from router_policies.files import PolicySet, load_file
from router_policies.menus import menu, rates
from router_policies.policy import decide
from router_policies.presets import default_policy
from router_policies.rules import Klass, Policy
from router_policies.sensitivity import classify
from router_policies.simulate import Choice, Reality, Recorded, Router, World
from router_policies.tally import Sums
from router_policies.traces import Mix, read
from router_policies.types import Ask, ForecastOf, Lane, Served

DATA = Path(__file__).parents[2] / "shared" / "data"
FAMILIES = ("azure_code.csv", "azure_conv.csv", "mooncake_conversation.jsonl", "mooncake_synthetic.jsonl")
MIX = Mix({"interactive": 0.30, "agent": 0.35, "batch": 0.35})
POLICY = Path(__file__).parent / "broker.yaml"
LEAST_LOADED_S = 0.74  # seconds of a slot that a call of the hot-spot test takes under least loaded, caches warm
LOADS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


# other routers


def fixed(policy: Policy, pick: Callable[[Ask, Sequence[Lane], Klass], Lane]) -> Router:
    """A router that looks at no sum; a lane that is down is passed over, as any of them would."""

    def route(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        klass = classify(policy, ask).klass
        up = [lane for lane in lanes if lane.healthy]
        return Choice(pick(ask, up, klass) if up else None, klass)

    return route


def _named(lanes: Sequence[Lane], *keys: str) -> Lane:
    by_key = {lane.key: lane for lane in lanes}
    return next((by_key[key] for key in keys if key in by_key), lanes[0])


def _price(lane: Lane) -> int:
    return lane.models["m"].rates.uncached or 0


def _busy(lane: Lane) -> float:
    return lane.in_flight / (lane.slots or 100)


def others(policy: Policy) -> dict[str, Router]:
    turn = cycle(range(1_000_000))
    standard, fast = ("provider/standard", "provider/priority"), ("provider/priority", "provider/standard")
    by_class = {"interactive": fast, "agent": standard, "batch": ("provider/flex", *standard)}
    return {
        "all standard": fixed(policy, lambda ask, lanes, klass: _named(lanes, *standard)),
        "all fast": fixed(policy, lambda ask, lanes, klass: _named(lanes, *fast)),
        "static by class": fixed(policy, lambda ask, lanes, klass: _named(lanes, *by_class[klass.name])),
        "round robin": fixed(policy, lambda ask, lanes, klass: lanes[next(turn) % len(lanes)]),
        "least busy": fixed(policy, lambda ask, lanes, klass: min(lanes, key=_busy)),
        "cheapest first": fixed(policy, lambda ask, lanes, klass: min(lanes, key=_price)),
        "cache affinity": fixed(policy, lambda ask, lanes, klass: max(
            lanes, key=lambda lane: (ask.cached.get(lane.key, 0), crc32(f"{ask.session} {lane.key}".encode())))),
    }  # fmt: skip


# scenarios


def steady(calls: list[Recorded], lanes: list[Reality]) -> tuple[list[Recorded], list[Reality]]:
    return calls, lanes


def load_step(calls: list[Recorded], lanes: list[Reality]) -> tuple[list[Recorded], list[Reality]]:
    """The middle third comes three times as fast."""
    span = calls[-1].at_s
    a, b = span / 3, 2 * span / 3

    def moved(at: float) -> float:
        return at if at < a else a + (at - a) / 3 if at < b else at - (b - a) * 2 / 3

    return [call._replace(at_s=moved(call.at_s)) for call in calls], lanes


def outage(calls: list[Recorded], lanes: list[Reality]) -> tuple[list[Recorded], list[Reality]]:
    """Flex is away for a fifth of the time, then the own pool for another."""
    span = calls[-1].at_s
    away = {"provider/flex": ((0.2 * span, 0.4 * span),), "own/standard": ((0.6 * span, 0.8 * span),)}
    return calls, [replace(lane, outages=away.get(lane.key, ())) for lane in lanes]


def slowdown(calls: list[Recorded], lanes: list[Reality]) -> tuple[list[Recorded], list[Reality]]:
    """Standard becomes four times as slow for a third of the time, and nobody says so."""
    span = calls[-1].at_s
    slow = {"provider/standard": ((span / 3, 4.0), (2 * span / 3, 1.0))}
    return calls, [replace(lane, paces=slow.get(lane.key, ())) for lane in lanes]


def price_change(calls: list[Recorded], lanes: list[Reality]) -> tuple[list[Recorded], list[Reality]]:
    """Halfway flex loses its discount."""
    change = {"provider/flex": ((calls[-1].at_s / 2, rates(0.95)),)}
    return calls, [replace(lane, prices=change.get(lane.key, ())) for lane in lanes]


PARTS = ("families", "hot-spot", "decision")
SCENARIOS = {"steady": steady, "load step": load_step, "outage": outage, "slowdown": slowdown, "price change": price_change}


# runs


def family(path: Path, scenario: str, routers: Iterable[str], seed: int, console: Console) -> dict[str, Any]:
    policy = load_file(POLICY)
    calls = sorted(read(path, team=policy.team, mix=MIX), key=lambda call: call.at_s)
    calls, lanes = SCENARIOS[scenario](calls, menu())
    named = {"broker": router(PolicySet(policies={policy.team: policy}))} | others(policy)
    found: dict[str, Sums] = {}
    held: list[Mapping[str, int]] = []
    named["broker"] = _noting(named["broker"], held)
    for name in routers:
        console.print(f"  {path.name}, {scenario}: {name} ...", end="\r", highlight=False)
        found[name] = run(named[name], calls, lanes, seed).sums()
    broker = found["broker"]
    row: dict[str, Any] = {"trace": path.name, "scenario": scenario, "calls": len(calls), "routers": {
        name: {"cost_usd": sums.cost_usd, "cost_and_wait_usd": sums.cost_usd + sums.waited_usd, "miss_share": sums.miss_share,
               "first_token_p95_s": sums.first_token_s(0.95), "cached_share": sums.cached / max(sums.cached + sums.uncached, 1),
               "lanes": dict(sums.lanes)}
        for name, sums in found.items()
    }}  # fmt: skip
    fair = [
        sums.cost_usd
        for name, sums in found.items()
        if name in ("all standard", "all fast") and sums.miss_share <= max(broker.miss_share, found["all standard"].miss_share)
    ]
    row["below_uniform"] = 1.0 - broker.cost_usd / min(fair)
    row["misses_no_more"] = broker.miss_share <= found["all standard"].miss_share
    for name, luck, caches in (("clairvoyant", True, None), ("informed", False, None), ("hindsight", False, held)):
        row[f"{name}_usd"] = bound(policy, calls, lanes, broker.missed, seed, luck=luck, held=caches)
        row[f"above_{name}"] = (broker.cost_usd + broker.waited_usd) / row[f"{name}_usd"] - 1.0
        # What the bound's dollars would be below all standard, if it waited for as much as the broker did.
        row[f"{name}_below_uniform"] = 1.0 - (row[f"{name}_usd"] - broker.waited_usd) / min(fair)
    return row


def _noting(route: Router, held: list[Mapping[str, int]]) -> Router:
    """The same router, and what the caches held for each call."""

    def noting(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        held.append(ask.cached)
        return route(ask, lanes, forecast)

    return noting


def hot_spot(quick: bool, seed: int, console: Console, load: float) -> dict[str, Any]:
    """64 replicas, 1,000 shared prefixes, Zipf load at this share of what the pool serves under least loaded: hits and queues
    against the specialists."""
    rng, replicas, count = random.Random(seed), 64, 6_000 if quick else 30_000
    weights = [1.0 / n for n in range(1, 1_001)]
    prefixes, at, calls = rng.choices(range(1_000), weights, k=count), 0.0, []
    for n, prefix in enumerate(prefixes):
        at += rng.expovariate(load * replicas * 4 / LEAST_LOADED_S)
        blocks = (*range(prefix * 8, prefix * 8 + 8), 1_000_000 + n)
        calls.append(Recorded(at, 8 * 512 + 200, 40, blocks=blocks, session=str(prefix), wished_class="agent"))
    lanes = [
        Reality(key=f"r{n}/standard", backend=f"r{n}", name="standard", rates=rates(0.6), first_token_s=0.05,
        prefill_s_per_token=1e-4,
                seconds_per_output_token=0.012, spread=0.15, slots=4, cache_ttl_s=3_600.0, cache_tokens=400_000,
                cache_minimum=512)
        for n in range(replicas)
    ]  # fmt: skip
    policy = default_policy()
    routers: dict[str, Router] = {
        "broker": router(PolicySet()),
        "cache affinity": fixed(policy, lambda ask, up, klass: max(
            up, key=lambda lane: (ask.cached.get(lane.key, 0), crc32(f"{ask.session} {lane.key}".encode())))),
        "least loaded": fixed(policy, lambda ask, up, klass: min(up, key=lambda lane: lane.in_flight)),
    }  # fmt: skip
    found: dict[str, Any] = {"load": load}
    for name, route in routers.items():
        console.print(f"  hot spot: {name} ...", end="\r", highlight=False)
        served = [one for _, one in World(lanes, seed).run(calls, route) if one is not None]
        later = served[len(served) // 5 :]  # caches are warm
        queues = sorted(one.queue_s for one in later)
        found[name] = {
            "hit_share": sum(one.cached for one in later) / sum(one.cached + one.uncached for one in later),
            "queue_p99_s": queues[int(0.99 * len(queues))],
            "first_token_p99_s": sorted(one.first_token_s for one in later)[int(0.99 * len(later))],
            "service_s": sum(one.total_s - one.queue_s for one in later) / len(later),
        }
    return found


def decision_times() -> dict[str, float]:
    """Microseconds of CPU a decision takes, best of several rounds."""
    found = {}
    for count in (1, 2, 20):
        models = {"m": Served("m", None, rates(1.0)["m"])}
        lanes = [
            Lane(key=f"b{n}/standard", backend=f"b{n}", name="standard", models=models, queue_s=0.05 * n) for n in range(count)
        ]
        policy = default_policy()
        ask = Ask(team="t", model="m", prompt_tokens=2_000, cached={lanes[0].key: 1_024}, session="s")
        best = float("inf")
        for _ in range(30):
            start = time.thread_time()
            for _ in range(200):
                decide(policy, ask, lanes)
            best = min(best, (time.thread_time() - start) / 200)
        found[f"{count} lanes"] = best * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", type=Path, help="trace file; default: the four in ../shared/data")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given again")
    parser.add_argument("--scenario", choices=list(SCENARIOS), action="append", help="only this; may be given again")
    parser.add_argument("--quick", action="store_true", help="steady load only, small hot-spot test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON, one line a result, as they come")
    given = parser.parse_args()
    console = Console(stderr=True)
    traces = given.trace or [DATA / name for name in FAMILIES]
    missing = [path for path in traces if not path.is_file()]
    if missing:
        sys.exit(f"{missing[0]}: there is no such trace file; name others with --trace")
    told = (lambda kind, result: print(json.dumps({kind: result}), flush=True)) if given.json else show
    parts, scenarios = given.part or PARTS, given.scenario or (["steady"] if given.quick else list(SCENARIOS))
    if "decision" in parts:
        told("decision_us", decision_times())
    if "hot-spot" in parts:
        for load in LOADS[-1:] if given.quick else LOADS:
            told("hot_spot", hot_spot(given.quick, given.seed, console, load))
    for path in traces if "families" in parts else ():
        for scenario in scenarios:
            every = ["broker", *others(default_policy())]
            told("family", family(path, scenario, every if scenario == "steady" else every[:4], given.seed, console))


def show(kind: str, row: Any) -> None:
    console = Console(width=140)
    if kind != "family":
        console.print(f"{kind}:", json.dumps(row))
        return
    table = Table("router", "USD", "with waiting", "missed", "p95 first token", "cached", "lanes",
                  title=f"{row['trace']}, {row['scenario']}")  # fmt: skip
    for name, figures in row["routers"].items():
        lanes = ", ".join(
            f"{key.split('/')[0][0]}/{key.split('/')[1]} {count}" for key, count in sorted(figures["lanes"].items())
        )
        table.add_row(
            name, f"{figures['cost_usd']:.2f}", f"{figures['cost_and_wait_usd']:.2f}", f"{figures['miss_share']:.2%}",
            f"{figures['first_token_p95_s']:.2f} s", f"{figures['cached_share']:.0%}", lanes,
        )  # fmt: skip
    console.print(table)
    bounds = ", ".join(
        f"{row[f'above_{name}']:.1%} above the {name} bound of {row[f'{name}_usd']:.2f} USD with waiting"
        for name in ("clairvoyant", "informed", "hindsight")
    )
    fair = "no more misses" if row["misses_no_more"] else "MORE MISSES than all standard"
    console.print(f"broker: {row['below_uniform']:.1%} below the best uniform tier at {fair}; {bounds}\n")


if __name__ == "__main__":
    main()
