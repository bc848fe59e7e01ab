"""What a hold and its settlement cost: microseconds of wall time and of this process's CPU, in memory and in Valkey.

    python -m benchmarks.budgets [--seconds 2] [--json]

Two budgets a call, 1, 16 and 64 tasks at once. `redis-py` is that client's own cost for one script call, for comparison.
"""
from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click
import uvloop
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.budgets import BudgetRule, Budgets, Payer
from gateway.budgets.memory import MemoryBudgets
from gateway.budgets.redis import RedisBudgets
from gateway.redis_link import Link, address
from tests.redis_server import Server

TASKS = (1, 16, 64)
HOUR_US = 3_600_000_000
Step = Callable[[str], Awaitable[Any]]


async def measure(step: Step, tasks: int, seconds: float) -> dict[str, float]:
    """Runs `step` with fresh ids for a while."""
    done, ends = 0, time.perf_counter() + seconds

    async def work(task: int) -> None:
        nonlocal done
        number = 0
        while time.perf_counter() < ends:
            for _ in range(20):
                number += 1
                await step(f"{task}-{number}-{tasks}")
            done += 20
            await asyncio.sleep(0)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(work, range(tasks)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"calls_per_s": round(done / wall), "wall_us": round(wall / done * 1e6, 2), "cpu_us": round(cpu / done * 1e6, 2)}


def hold_and_post(budgets: Budgets) -> Step:
    payer = Payer(team="search", key_id="k1")
    month = BudgetRule(name="month", limit_nanos=10**15, timezone="Europe/Berlin")
    rules = [month, BudgetRule(name="key", limit_nanos=10**15, scope="key")]
    accounts = [account for account in (rule.account(payer) for rule in rules) if account is not None]

    async def step(id: str) -> None:
        budgets.post(await budgets.hold(accounts, 1_000, id, HOUR_US), 400)

    return step


async def run(seconds: float) -> dict[str, dict[int, dict[str, float]]]:
    server = Server()
    try:
        found: dict[str, dict[int, dict[str, float]]] = {}
        memory = hold_and_post(MemoryBudgets())
        found["memory"] = {tasks: await measure(memory, tasks, seconds) for tasks in TASKS}
        store = RedisBudgets(Link(address(server.url), timeout_s=5.0), "bench", shut_s=0.0)
        await store.start()
        shared = hold_and_post(store)
        found["valkey"] = {tasks: await measure(shared, tasks, seconds) for tasks in TASKS}
        await store.close()
        client = Redis(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=5.0)
        digest = await client.script_load("return {ARGV[1], 'ok'}")
        found["redis-py, one script call"] = {
            tasks: await measure(lambda id: client.evalsha(digest, 1, "k", id), tasks, seconds) for tasks in TASKS
        }
        await client.aclose()
        return found
    finally:
        server.stop()


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="for each figure")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(seconds: float, as_json: bool) -> None:
    """Microseconds per hold and settlement."""
    found = uvloop.run(run(seconds))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for store, by_tasks in found.items():
        for tasks, figures in by_tasks.items():
            click.echo(
                f"{store:26} {tasks:3} tasks  {figures['wall_us']:9.2f} us wall  {figures['cpu_us']:8.2f} us CPU  "
                f"{figures['calls_per_s']:8} /s"
            )


if __name__ == "__main__":
    main()
