"""`python -m benchmarks.dashboard`: how long the server takes for each page of the dashboard, by the size of the ledger.

Pages run as a browser would have them run (all queries, all charts made), with nothing kept from the run before, on entries of
thirty days. Up to a million entries are in SQLite, and the figures are processor time, SQLite's included; more are in a
throw-away PostgreSQL, or the one at `--postgres`, whose work is another process's: those are by the clock.
"""
from __future__ import annotations

import argparse
import contextlib
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import streamlit as st
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dashboard import app
from dashboard.app import PAGES
from dashboard.data import Viewer
from gateway.ledger import reports
from gateway.ledger.reports import LedgerUnavailable
from tests.dashboard.opened import page
from tests.ledger.many import fill
from tests.ledger.postgres import Postgres, binaries

SQLITE_UP_TO, BUDGET_S = 1_000_000, 1.0
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000], help="entries")
    parser.add_argument("--runs", type=int, default=5, help="runs of each page")
    parser.add_argument("--postgres", metavar="URL", help="for more than a million: an empty database, or one filled before")
    parser.add_argument("--keep", type=Path, help="folder for the files of SQLite; those that are there already are used again")
    parser.add_argument("--query", default="range=30d", help="what stands in the address, for example range=7d&lane=fast")
    args = parser.parse_args()
    address = dict(parse_qsl(args.query))
    logging.disable(logging.WARNING)        # Streamlit's, about running without a server
    times = {}
    for size in args.sizes:
        with _ledger(size, args.keep, args.postgres) as url:
            clock = time.process_time if url.startswith("sqlite") else time.monotonic
            times[size] = measure(url, args.runs, address, clock)
    heads = [f"{size:,} {'processor' if size <= SQLITE_UP_TO else 'clock'} p50 / p95" for size in args.sizes]
    table = Table("page", *heads, title=f"ms of a page, {args.runs} runs, {args.query}")
    for title in PAGES:
        table.add_row(title, *[_text(times[size][title]) for size in args.sizes])
    console.print(table)
    slow = [title for title in PAGES for size in args.sizes if _p95(times[size][title]) > BUDGET_S]
    console.print(f"over {BUDGET_S:.0f} s at p95: {', '.join(sorted(set(slow))) or 'none'}")


@contextlib.contextmanager
def _ledger(size: int, keep: Path | None, postgres: str | None) -> Iterator[str]:
    """The URL of a ledger of that size, made where it is not there yet."""
    with contextlib.ExitStack() as stack:
        if size > SQLITE_UP_TO:
            place: str | Path = postgres or _server(stack)
        else:
            place = (keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))) / f"{size}.db"
        url = place if isinstance(place, str) else f"sqlite:///{place}"
        if not _entries(url):
            started = time.monotonic()
            fill(place, size, _shown)
            console.print(f"{_entries(url):,} entries made in {time.monotonic() - started:.0f} s")
        yield url


def _server(stack: contextlib.ExitStack) -> str:
    found = binaries()
    if found is None:
        raise SystemExit("no PostgreSQL: install the test extra, or name one by --postgres")
    server = Postgres(found)
    stack.callback(server.stop)
    return server.url


def _entries(url: str) -> int:
    report = reports.connect(url)
    try:
        return report.extent().entries
    except LedgerUnavailable:
        return 0
    finally:
        report.close()


def _shown(loop: Iterable[int], what: str) -> Iterable[int]:
    return track(list(loop), what, console=console)


def measure(url: str, runs: int, address: dict[str, str], clock: Callable[[], float]) -> dict[str, list[float]]:
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
            page(title, **address)
            if turn:        # the first run loads modules
                found[title].append(took_s[-1])
    app.show = show
    return found


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 20]


def _text(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:,.0f} / {_p95(seconds) * 1e3:,.0f}"


if __name__ == "__main__":
    main()
