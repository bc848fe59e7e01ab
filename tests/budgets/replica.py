"""One replica of a made-up gateway: calls at once against shared budgets, its settlements in a file that stands for the ledger.

    python -m tests.budgets.replica '{"url": ..., "org": ..., "ledger": FILE, "limit": N, "tasks": 200, "seconds": 3, ...}'

Prints what its calls came to as one line of JSON. An entry is written before the store is told, as the journal does.
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.budgets import Account, BudgetRule, Payer, Refused, Spent, StoreAway
from gateway.budgets.redis import RedisBudgets
from gateway.redis_link import TIMEOUT_S, Link, address

OPENING_S = 4.0


def accounts(limit: int) -> list[Account]:
    payer = Payer(team="alpha", key_id="k1")
    rules = [BudgetRule(name="cap", limit_nanos=limit, window="total"), BudgetRule(name="key", limit_nanos=2 * limit, scope="key")]
    return [found for found in (rule.account(payer) for rule in rules) if found is not None]


def entries(file: Path) -> dict[str, int]:
    """What the ledger knows: id -> cost. A line that a killed process left half is none."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return {id: int(cost) for id, cost in (line.split() for line in lines)}


class Replica:
    def __init__(self, how: Mapping[str, Any]) -> None:
        self.how, self.file = how, Path(how["ledger"])
        self.name = f"r{os.getpid()}"
        self.chance = random.Random(how.get("seed", os.getpid()))
        self.counts: Counter[str] = Counter()
        self.waits_ms: list[float] = []
        self.began = time.perf_counter()
        self.over = asyncio.Event()
        self.out = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.accounts = accounts(how["limit"])
        link = Link(address(how["url"]), timeout_s=how.get("timeout_s", TIMEOUT_S))
        self.budgets = RedisBudgets(link, self.name, org=how["org"], past=self.past, costs=self.costs)

    async def past(self, account: Account, starts_us: int | None, recent_us: int | None, without: Sequence[str]) -> Spent:
        return Spent(0, entries(self.file))

    async def costs(self, ids: Sequence[str]) -> dict[str, int | None]:
        known = entries(self.file)
        return {id: known[id] for id in ids if id in known}

    async def run(self) -> None:
        await self.budgets.start()
        ending = asyncio.create_task(self.end())
        await asyncio.gather(*(self.client(task) for task in range(self.how["tasks"])))
        await ending
        await self.budgets.close()
        self.waits_ms.sort()
        at = [self.waits_ms[min(int(len(self.waits_ms) * q), len(self.waits_ms) - 1)] for q in (0.5, 0.99, 1.0)] if self.waits_ms else []
        print(json.dumps({**self.counts, "hold_ms_p50_p99_max": [round(ms, 1) for ms in at]}))

    async def end(self) -> None:
        """After its time, or when it is told so."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.over.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), self.how["seconds"])
        self.over.set()

    async def client(self, task: int) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            await self.call(f"{self.name}-{task}-{number}")
            await asyncio.sleep(self.how.get("pause_s", 0.0) * self.chance.random() * 2)

    async def call(self, id: str) -> None:
        amount, ttl_us = self.chance.randrange(1, 200), self.how.get("ttl_us", 2_000_000)
        began = time.perf_counter()
        try:
            hold = await self.budgets.hold(self.accounts, amount, id, ttl_us)
            if self.chance.random() < 0.1:
                assert (await self.budgets.hold(self.accounts, amount, id, ttl_us)).amount_nanos == amount
        except Refused:
            self.counts["refused"] += 1
            return
        except StoreAway:
            self.counts["away"] += 1
            return
        finally:
            if began - self.began > OPENING_S:     # a store that is empty opens after two seconds
                self.waits_ms.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(0.002)
        if self.chance.random() < self.how.get("abandon", 0.05):
            self.counts["abandoned"] += 1  # as if it had been killed between HOLD and OPEN
            return
        cost = self.chance.randrange(0, amount + 1)
        os.write(self.out, f"{id} {cost}\n".encode())
        self.budgets.post(hold, cost)
        if self.chance.random() < 0.1:
            self.budgets.post(hold, cost)
        self.counts["ok"] += 1


if __name__ == "__main__":
    asyncio.run(Replica(json.loads(sys.argv[1])).run())
