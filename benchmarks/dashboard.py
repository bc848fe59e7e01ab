"""`python -m benchmarks.dashboard`: how long the server takes for each page of the dashboard, by the size of the ledger.

Pages run as a browser would have them run (all queries, all charts made), with nothing kept from the run before. Sizes are
10^4 and 10^6 entries over 30 days in SQLite; `--sizes` names others, `--postgres URL` fills an empty PostgreSQL database (10^7
take an hour; its own time is not in the figures). The ledger is made from 20,000 different entries, copied by the database with
other ids and times.
"""
from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import streamlit as st
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dashboard.app import PAGES
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store
from gateway.ledger.tables import COLUMNS
from gateway.metering import prices
from gateway.metering.named import named
from tests.dashboard.opened import page
from tests.ledger.generate import DAY_US, entries, write

SEED, DAYS, BUDGET_S = 20_000, 30.0, 1.0
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,1000000", help="entries, comma-separated")
    parser.add_argument("--runs", type=int, default=5, help="runs of each page")
    parser.add_argument("--postgres", metavar="URL", help="an empty database instead of a SQLite file; one size only")
    parser.add_argument("--keep", type=Path, help="folder for the ledgers; those that are there already are used again")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        table = Table("page", *[f"{size:,} p50 / p95" for size in sizes], title="processor ms of a page, SQLite's included")
        times = {}
        for size in sizes:
            place = args.postgres or (args.keep or Path(folder)) / f"{size}.db"
            url = str(place) if isinstance(place, str) else f"sqlite:///{place}"
            if isinstance(place, str) or not place.exists():
                filled_s, rolled_s = fill(place, size)
                console.print(f"{size:,} entries written in {filled_s:.0f} s, rolled up in {rolled_s:.0f} s")
            times[size] = measure(url, args.runs)
        for title in PAGES:
            table.add_row(title, *[_text(times[size][title]) for size in sizes])
        console.print(table)
        slow = [title for title in PAGES for size in sizes if _p95(times[size][title]) > BUDGET_S]
        console.print(f"over {BUDGET_S:.0f} s at p95: {', '.join(sorted(set(slow))) or 'none'}")


def fill(place: Path | str, size: int) -> tuple[float, float]:
    """Seconds for writing the entries and for rolling them up."""
    copies = max(1, size // SEED)
    now_us, span_us = time.time_ns() // 1_000, int(DAYS / copies * DAY_US)
    started = time.monotonic()
    url = write(place, entries(min(size, SEED), now_us - (copies - 1) * span_us, days=DAYS / copies))
    asyncio.run(_copy(url, copies, span_us))
    written = time.monotonic()
    asyncio.run(_roll(url))
    return written - started, time.monotonic() - written


async def _copy(url: str, copies: int, span_us: int) -> None:
    """The oldest copy is there; each further one is later."""
    store = Store(url)
    own = {"id": "id || :mark", "call_id": "call_id || :mark", "run": "run || :mark", "at_us": "at_us + :later"}
    picked = ", ".join(own.get(name, name) for name in COLUMNS)
    for n in track(range(1, copies), "writing", console=console, disable=copies == 1):
        async with store.begin() as connection:
            picked_n = picked.replace(":mark", f"'~{n}'").replace(":later", str(n * span_us))
            source = "SELECT * FROM ledger WHERE id NOT LIKE '%~%'"
            await connection.exec_driver_sql(f"INSERT INTO ledger ({', '.join(COLUMNS)}) SELECT {picked_n} FROM ({source}) s")
    await store.close()


async def _roll(url: str) -> None:
    store = Store(url)
    roller, left = Roller(store, named(prices.load)), 1
    with console.status("rolling up ...") as status:
        while left:
            left = (await roller.step()).left
            status.update(f"rolling up, {left:,} left ...")
    await store.close()


def measure(url: str, runs: int) -> dict[str, list[float]]:
    """Processor seconds of each page's runs, by its title: on a machine that is shared, waiting says nothing."""
    os.environ["TOLLWAY_DATABASE_URL"] = url
    found: dict[str, list[float]] = {title: [] for title in PAGES}
    for turn in range(runs + 1):
        for title in PAGES:
            st.cache_data.clear()
            started = time.process_time()
            page(title, range="30d")
            if turn:        # the first run loads modules
                found[title].append(time.process_time() - started)
    return found


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 20]


def _text(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:,.0f} / {_p95(seconds) * 1e3:,.0f}"


if __name__ == "__main__":
    main()
