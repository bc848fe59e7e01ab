"""Whether a backtest says what happens: policies that nobody has seen, replayed and run live, with cost and p95 first token.

    python -m benchmarks.broker_live [--policies 10] [--seconds 8] [--json]

Each policy (drawn at random: values of waiting, deadlines) gets a gateway process of its own before an engine with two lanes,
fast and standard, which answers after injected delays: those that the simulator draws for the same calls, and in the standard
lane behind a queue of four slots. What is compared is therefore the model: decisions, learning, queues, prices. Agreed: the
realised figure lies in the 95 % interval that the backtest states.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contract.bench import FINISH, MODEL, USED, WORD, Bench, Exchange, run
from router_policies.backtest import router
from router_policies.backtest import run as simulate
from router_policies.files import load_folder
from router_policies.live import Prior
from router_policies.simulate import Reality, Recorded, alone_s
from router_policies.tally import FIGURES, interval, resampled
from router_policies.types import Rates

SEED = 7
LANES = (
    Reality(
        key="b0/fast", backend="b0", name="fast", rates={MODEL: Rates(4_000_000, 400_000, None, 16_000_000)},
        first_token_s=0.06, prefill_s_per_token=2e-5, seconds_per_output_token=0.001, spread=0.3,
        cache_minimum=1 << 30,
    ),
    Reality(
        key="b0/standard", backend="b0", name="standard", rates={MODEL: Rates(1_000_000, 100_000, None, 4_000_000)},
        first_token_s=0.12, prefill_s_per_token=6e-5, seconds_per_output_token=0.003, spread=0.3, slots=4,
        cache_minimum=1 << 30,
    ),
)  # fmt: skip
PRICES = """
[bench]
source = "made up"
checked_on = 2026-01-01
rows = [
  {model = "*", input = "1", cached = "0.1", output = "4"},
  {model = "*", tier = "priority", input = "4", cached = "0.4", output = "16"},
]
"""
COMPARED = ("cost_usd", "first_token_p95_s")


def policies(count: int) -> list[dict[str, Any]]:
    """Held out: nothing was tuned on any of them."""
    rng, found = random.Random(SEED), []
    for _ in range(count):
        classes: dict[str, Any] = {}
        for name in ("interactive", "agent", "batch"):
            classes[name] = {"value_usd_per_hour": round(10 ** rng.uniform(-1, 3), 3), "lanes": ["standard", "fast"]}
            if rng.random() < 0.4:
                classes[name]["first_token_deadline_ms"] = rng.choice([300, 500, 1_000])
                classes[name]["epsilon"] = rng.choice([0.02, 0.05, 0.2])
        found.append({"team": "plain", "classes": classes, "explore": rng.choice([0, 0.02]), "cache": {"plan": False}})
    return found


def calls(seconds: float) -> list[Recorded]:
    """About 15 a second, of three classes."""
    rng, at_s, found = random.Random(SEED + 1), 0.0, list[Recorded]()
    while at_s < seconds:
        found.append(Recorded(
            at_s, rng.randrange(250, 3_000), min(max(int(rng.lognormvariate(4.0, 0.7)), 5), 400), "plain", MODEL,
            session=str(len(found)), wished_class=rng.choice(["interactive", "agent", "batch"]),
        ))  # fmt: skip
        at_s += rng.expovariate(15.0)
    return found


class Engine:
    """Answers call n of the trace after the delays that the simulator draws for it; the lane is told by the service tier."""

    def __init__(self, trace: list[Recorded]) -> None:
        rng = random.Random(SEED)
        self._trace = [(call, rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)) for call in trace]
        self._slots = asyncio.Semaphore(LANES[1].slots or 1)

    async def answer(self, exchange: Exchange) -> None:
        number = int(exchange.body["messages"][0]["content"].split(" ", 1)[0])
        call, steady, varied = self._trace[number]
        fast = exchange.body.get("service_tier") == "priority"
        first, rest = alone_s(LANES[0 if fast else 1], call.prompt_tokens, call.output_tokens, steady, varied)
        if fast:
            await self._say(exchange, call, first, rest)
            return
        async with self._slots:
            await self._say(exchange, call, first, rest)

    async def _say(self, exchange: Exchange, call: Recorded, first: float, rest: float) -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        await asyncio.sleep(first)
        exchange.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        exchange.chunk(WORD)
        await asyncio.sleep(max(began + first + rest - loop.time(), 0.0))
        used = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.output_tokens}
        exchange.chunk(FINISH.replace(USED, json.dumps(used | {"total_tokens": sum(used.values())}).encode()))
        exchange.transport.write(b"0\r\n\r\n")


def predicted(policy: dict[str, Any], trace: list[Recorded]) -> dict[str, tuple[float, float, float]]:
    """What the backtest states of each figure: its value and the 95 % interval."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plain.yaml").write_text(json.dumps(policy))
        lanes = [replace(lane, prior=_prior(lane)) for lane in LANES]
        tally = simulate(router(load_folder(Path(folder))), trace, lanes, SEED)
    drawn = resampled([tally])
    return {
        name: (FIGURES[name](tally.sums()), *interval(FIGURES[name](one) for (one,) in drawn)) for name in COMPARED
    }  # fmt: skip


def _prior(lane: Reality) -> Prior:
    return Prior(lane.first_token_s, lane.prefill_s_per_token, lane.seconds_per_output_token, lane.spread)


async def realised(policy: dict[str, Any], trace: list[Recorded]) -> dict[str, float]:
    lanes = {
        lane.name: {
            "first_token_ms": lane.first_token_s * 1e3, "prefill_tokens_per_s": 1 / lane.prefill_s_per_token,
            "ms_per_output_token": lane.seconds_per_output_token * 1e3, "spread": lane.spread,
            **({"slots": lane.slots} if lane.slots else {}), **({"service_tier": "priority"} if lane.name == "fast" else {}),
        }
        for lane in LANES
    }  # fmt: skip
    prices = Path(tempfile.mkdtemp()) / "prices.toml"
    prices.write_text(PRICES)
    rules = {**policy, "budgets": [], "normalize": "off"}
    async with Bench.open(policy=rules, backend={"lanes": lanes, "provider": "bench"}, prices=[str(prices)]) as bench:
        bench.handler = Engine(trace).answer
        loop, waits = asyncio.get_running_loop(), list[float]()
        began = loop.time() + 0.2

        async def one(number: int, call: Recorded) -> None:
            await asyncio.sleep(began + call.at_s - loop.time())
            text = f"{number} ".ljust(4 * call.prompt_tokens - 90, "x")
            request = bench.request(
                headers=b"x-tollway-class: %b\r\n" % (call.wished_class or "").encode(), stream=True, max_tokens=4_000,
                messages=[{"role": "user", "content": text}],
            )  # fmt: skip
            waits.append(await _first_token_s(bench.port, request))

        await asyncio.gather(*(one(number, call) for number, call in enumerate(trace)))
        for _ in range(100):  # the last entries are on their way from the journal
            row = (await bench.ask("GET", "/tollway/usage")).json()["rows"][0]
            if row["calls"] == len(trace):
                break
            await asyncio.sleep(0.2)
        else:
            raise SystemExit(f"only {row['calls']} of {len(trace)} calls were booked")
        return {"cost_usd": float(row["cost_usd"]), "first_token_p95_s": quantiles(waits, n=100)[94]}


async def _first_token_s(port: int, request: bytes) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a call was answered {head[:60]!r}")
        await reader.readuntil(b"\n\n")
        took_s = time.perf_counter() - began
        await reader.readuntil(b"[DONE]")
        return took_s
    finally:
        writer.close()


def compare(policy: dict[str, Any], seconds: float) -> dict[str, Any]:
    trace = calls(seconds)
    said, came = predicted(policy, trace), run(realised(policy, trace))
    figures = {
        name: {"predicted": value, "low": low, "high": high, "realised": came[name], "agree": low <= came[name] <= high}
        for name, (value, low, high) in said.items()
    }  # fmt: skip
    return {"calls": len(trace), "figures": figures, "agree": all(one["agree"] for one in figures.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0, help="of traffic for each")
    parser.add_argument("--only", type=int, help="the policy of this number alone")
    parser.add_argument("--json", action="store_true", help="print JSON, one line a policy, as they come")
    given = parser.parse_args()
    console, found = Console(stderr=True), list[dict[str, Any]]()
    for number, policy in enumerate(policies(given.policies)):
        if given.only in (None, number):
            console.print(f"  policy {number} of {given.policies} ...", end="\r", highlight=False)
            found.append({"policy": number, **compare(policy, given.seconds)})
            if given.json:
                print(json.dumps(found[-1]), flush=True)
    if given.json:
        return
    table = Table("policy", "calls", "figure", "predicted", "95 %", "realised", "agrees")
    for row in found:
        for name, one in row["figures"].items():
            span = f"{one['low']:.4g} to {one['high']:.4g}"
            figures = f"{one['predicted']:.4g}", span, f"{one['realised']:.4g}", "yes" if one["agree"] else "NO"
            table.add_row(str(row["policy"]), str(row["calls"]), name, *figures)
    Console().print(table)
    print(f"{sum(row['agree'] for row in found)} of {len(found)} policies agree in both figures")


if __name__ == "__main__":
    main()
