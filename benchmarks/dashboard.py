"""`python -m benchmarks.dashboard`: how long the server takes for each page of the dashboard, by the size of the ledger.

Pages run as a browser would have them run (all queries, all charts made), with nothing kept from the run before. Sizes are
10^4 and 10^6 entries over 30 days in SQLite; `--sizes` names others, `--postgres URL` fills an empty PostgreSQL, whose own work
is in the figures by the clock only (`--wall`). Two hours of the ledger are made; the database makes the others from them, with
other ids and times.
"""
from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import asyncpg
import streamlit as st
from rich.console import Console
from rich.progress import track
from rich.table import Table as Printed
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from dashboard import app
from dashboard.app import PAGES
from dashboard.data import Viewer
from gateway.ledger.days import HOUR_US
from gateway.ledger.rollup_sql import RUN
from gateway.ledger.rollup_tables import LATENCY, ROLLUP, seq
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store, async_url
from gateway.ledger.tables import COLUMNS, LEDGER
from gateway.metering import prices
from gateway.metering.named import named
from tests.dashboard.opened import page
from tests.ledger.generate import entries, write

COPIES, COPY_HOURS, BUDGET_S = 360, 2, 1.0
"""Of two hours each, thirty days together; whole hours, so that their roll-ups can be copied too."""
_STEP = 9
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,1000000", help="entries, comma-separated")
    parser.add_argument("--runs", type=int, default=5, help="runs of each page")
    parser.add_argument("--postgres", metavar="URL", help="an empty database instead of a SQLite file; one size only")
    parser.add_argument("--filled", action="store_true", help="the PostgreSQL database was filled by an earlier run")
    parser.add_argument("--wall", action="store_true", help="by the clock, not the processor: PostgreSQL's work is in it")
    parser.add_argument("--keep", type=Path, help="folder for the ledgers; those that are there already are used again")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        what = "ms of a page by the clock" if args.wall else "processor ms of a page, SQLite's included"
        table = Printed("page", *[f"{size:,} p50 / p95" for size in sizes], title=what)
        times = {}
        for size in sizes:
            place = args.postgres or (args.keep or Path(folder)) / f"{size}.db"
            url = str(place) if isinstance(place, str) else f"sqlite:///{place}"
            if not (isinstance(place, str) and args.filled) and not (isinstance(place, Path) and place.exists()):
                console.print(f"{size:,} entries made in {fill(place, size):.0f} s")
            times[size] = measure(url, args.runs, time.monotonic if args.wall else time.process_time)
        for title in PAGES:
            table.add_row(title, *[_text(times[size][title]) for size in sizes])
        console.print(table)
        slow = [title for title in PAGES for size in sizes if _p95(times[size][title]) > BUDGET_S]
        console.print(f"over {BUDGET_S:.0f} s at p95: {', '.join(sorted(set(slow))) or 'none'}")


def fill(place: Path | str, size: int) -> float:
    """Seconds that it took. The oldest hours are written and rolled up; the others are copies of them, roll-ups included."""
    started = time.monotonic()
    until_us = time.time_ns() // 1_000 // HOUR_US * HOUR_US - (COPIES - 1) * COPY_HOURS * HOUR_US
    url = write(place, entries(size // COPIES, until_us, days=COPY_HOURS / 24))
    asyncio.run(_multiply(url))
    return time.monotonic() - started


async def _multiply(url: str) -> None:
    store = Store(url)
    roller = Roller(store, named(prices.load))
    while (await roller.step()).left:
        pass
    await store.close()
    engine = create_async_engine(async_url(url))        # the store's gives up after seconds
    later = f"nth * {COPY_HOURS}"
    own = {name: f"{name} || '~' || nth" for name in ("id", "call_id", "run")} | {"at_us": f"at_us + {later} * {HOUR_US}"}
    run = f"CASE WHEN dim = '{','.join(RUN)}' THEN v1 || '~' || nth ELSE v1 END"
    async with engine.begin() as connection:
        for index in LEDGER.indexes:
            await connection.run_sync(index.drop)
        await _copies(connection, LEDGER, {name: own.get(name, name) for name in COLUMNS}, "writing")
        for index in track(LEDGER.indexes, "indexes", console=console):
            await connection.run_sync(index.create)
        for table in (ROLLUP, LATENCY):
            moved = {"hour": f"hour + {later}", **({"v1": run} if table is ROLLUP else {})}
            await _copies(connection, table, {c.name: moved.get(c.name, c.name) for c in table.c}, table.name)
        newest = f"(SELECT max({seq(engine.dialect.name)}) FROM ledger)"
        await connection.exec_driver_sql(f"UPDATE rollup_state SET seq = {newest}, entries = (SELECT count(*) FROM ledger)")
    await engine.dispose()
    if url.startswith("postgresql"):        # as autovacuum would have done in the thirty days
        bare = await asyncpg.connect(url)
        await bare.execute("VACUUM ANALYZE")
        await bare.close()


async def _copies(connection: AsyncConnection, table: Table, picked: Mapping[str, str], what: str) -> None:
    """The database copies its own rows, faster than any COPY could send them."""
    await connection.exec_driver_sql(f"CREATE TEMP TABLE seed AS SELECT * FROM {table.name}")
    for first in track(range(1, COPIES, _STEP), what, console=console):
        last = min(first + _STEP, COPIES) - 1
        numbers = f"WITH RECURSIVE s(nth) AS (SELECT {first} UNION ALL SELECT nth + 1 FROM s WHERE nth < {last})"
        into = f"INSERT INTO {table.name} ({', '.join(picked)}) {numbers}"
        await connection.exec_driver_sql(f"{into} SELECT {', '.join(picked.values())} FROM s CROSS JOIN seed")
    await connection.exec_driver_sql("DROP TABLE seed")


def measure(url: str, runs: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each page's runs, by its title."""
    os.environ["TOLLWAY_DATABASE_URL"] = url
    found: dict[str, list[float]] = {title: [] for title in PAGES}
    took_s: list[float] = []
    show = app.show

    def timed(title: str, viewer: Viewer) -> None:
        started = clock()
        show(title, viewer)
        took_s.append(clock() - started)

    app.show = timed        # without what the test harness around it takes
    for turn in range(runs + 1):
        for title in PAGES:
            st.cache_data.clear()
            page(title, range="30d")
            if turn:        # the first run loads modules
                found[title].append(took_s[-1])
    return found


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 20]


def _text(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:,.0f} / {_p95(seconds) * 1e3:,.0f}"


if __name__ == "__main__":
    main()
