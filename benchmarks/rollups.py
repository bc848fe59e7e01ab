"""`python -m benchmarks.rollups`: what keeping the roll-ups takes from the event loop that serves calls.

Processor time of the loop's own thread, all in all and the longest turn: the database works in another thread or process. The
first step builds and compiles all statements.
"""
from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.ledger.rollups import CHUNK, Roller
from gateway.ledger.sql import Store
from gateway.metering import prices
from gateway.metering.named import named
from tests.ledger.generate import entries, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--chunk", type=int, default=CHUNK, help="entries in one step")
    args = parser.parse_args()
    table = Table("step", "entries", "loop ms", "loop ms per 1,000", "longest turn ms", "wall ms")
    with tempfile.TemporaryDirectory() as folder:
        url = write(Path(folder) / "ledger.db", entries(args.entries, time.time_ns() // 1_000, days=1.0))
        for n, (count, turns, wall_s) in enumerate(asyncio.run(steps(url, args.chunk)), 1):
            loop_ms = sum(turns) * 1e3
            figures = loop_ms, loop_ms * 1_000 / max(count, 1), max(turns) * 1e3, wall_s * 1e3
            table.add_row(str(n), f"{count:,}", *[f"{figure:,.1f}" for figure in figures])
    Console().print(table)


async def steps(url: str, chunk: int) -> list[tuple[int, list[float], float]]:
    """Of each step its entries, the seconds of the loop's turns, and the seconds by the clock."""
    turns: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: Any) -> None:
        started = time.thread_time()
        run(handle)
        turns.append(time.thread_time() - started)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    store, found, left = Store(url), [], 1
    roller = Roller(store, named(prices.load))
    try:
        while left:
            turns.clear()
            started = time.monotonic()
            step = await roller.step(chunk)
            left = step.left
            found.append((step.entries, list(turns), time.monotonic() - started))
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        await store.close()
    return found


if __name__ == "__main__":
    main()
