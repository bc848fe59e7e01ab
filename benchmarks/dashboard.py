"""`python -m benchmarks.dashboard`: how long the server takes for each page of the dashboard, by the size of the ledger.

Pages run as a browser would have them run (all queries, all charts made), with nothing kept from the run before, on entries of
thirty days: bare, and with every filter, viewer and choice of `dashboard_asks`. Up to a million entries are in SQLite, and the
figures are processor time, SQLite's included; more are in a throw-away PostgreSQL, or the one at `--postgres`, whose work is
another process's: those are by the clock. Ten million take 20 GB of disk and some minutes to make.
"""
from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.dashboard_asks import BARE, Ask, asks
from dashboard import app
from dashboard.app import PAGES
from dashboard.data import Viewer
from gateway.ledger import reports
from gateway.ledger.reports import LedgerUnavailable
from tests.dashboard.opened import asked
from tests.ledger import heard
from tests.ledger.many import fill
from tests.ledger.postgres import Postgres, binaries

SQLITE_UP_TO, BUDGET_S = 1_000_000, 1.0
console = Console()


@dataclass(frozen=True)
class Took:
    """Seconds that the server took for one ask, run by run."""

    ask: Ask
    seconds: Sequence[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p95(self) -> float:
        return p95(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000], help="entries")
    parser.add_argument("--runs", type=int, default=3, help="runs of each page with each filter")
    parser.add_argument("--bare-runs", type=int, default=10, help="runs of each page without one")
    parser.add_argument("--pages", nargs="+", choices=list(PAGES), default=list(PAGES))
    parser.add_argument("--filters", default="", help="only those with this text in their name, for example `lane`")
    parser.add_argument("--postgres", metavar="URL", help="for more than a million: an empty database, or one filled before")
    parser.add_argument("--keep", type=Path, help="folder for the files of SQLite; those that are there already are used again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every single time, in seconds")
    args = parser.parse_args()
    logging.disable(logging.WARNING)        # Streamlit's, about running without a server
    found: dict[int, list[Took]] = {}
    for size in args.sizes:
        with _ledger(size, args.keep, args.postgres) as url:
            found[size] = measure(url, args.pages, args.filters, args.runs, args.bare_runs)
        if args.json:       # of the sizes that are done, whatever becomes of the next
            args.json.write_text(json.dumps(_json(found), indent=1) + "\n")
    console.print(_table(found, args.pages))
    slow = [(size, took) for size, all_of_them in found.items() for took in all_of_them if took.p95 > BUDGET_S]
    console.print(f"over {BUDGET_S:.0f} s at p95: {len(slow) or 'none'} of {sum(map(len, found.values()))}")
    for size, took in sorted(slow, key=lambda one: -one[1].p95):
        console.print(f"  {size:,}: {took.ask.title}, {took.ask.name}: {took.p95:.2f} s")


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
        heard.say(url)
        yield url


def _server(stack: contextlib.ExitStack) -> str:
    found = binaries()
    if found is None:
        raise SystemExit("no PostgreSQL: install the test extra, or name one by --postgres")
    server = Postgres(found)
    stack.callback(server.stop)
    return server.hasty_url


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


def measure(url: str, pages: Sequence[str], only: str, runs: int, bare_runs: int) -> list[Took]:
    os.environ["TOLLWAY_DATABASE_URL"] = url
    clock = time.process_time if url.startswith("sqlite") else time.monotonic
    report = reports.connect(url)
    wanted = [ask for ask in asks(report) if ask.title in pages and only in ask.name]
    report.close()
    with _timed(clock) as took_s:
        for title in pages:     # loads modules, and what the database reads first
            asked(title, Viewer(None), {"range": "7d"})
        found = []
        for ask in track(wanted, f"pages of {url.partition(':')[0]}", console=console):
            took_s.clear()
            gc.collect()        # what the harness keeps of earlier pages is none of the next one's work
            gc.freeze()
            for _ in range(bare_runs if ask.name == BARE else runs):
                st.cache_data.clear()
                asked(ask.title, ask.viewer, ask.address, ask.widgets)
            found.append(Took(ask, tuple(took_s)))
    return found


@contextlib.contextmanager
def _timed(clock: Callable[[], float]) -> Iterator[list[float]]:
    """Seconds of each page, without what the test harness around it takes."""
    took_s, show = list[float](), app.show

    def timed(title: str, viewer: Viewer) -> None:
        started = clock()
        show(title, viewer)
        took_s.append(clock() - started)

    app.show = timed
    try:
        yield took_s
    finally:
        app.show = show


def p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 20]


def _table(found: dict[int, list[Took]], pages: Sequence[str]) -> Table:
    heads = [f"{size:,} {'processor' if size <= SQLITE_UP_TO else 'clock'}" for size in found]
    table = Table("page", *heads, title=f"ms: {BARE}, p50 / p95; p95 of all filters together; the slowest one's p95")
    for title in pages:
        cells = []
        for all_of_them in found.values():
            own = [took for took in all_of_them if took.ask.title == title]
            cells.append(_cell(own) if own else "")
        table.add_row(title, *cells)
    return table


def _cell(own: Sequence[Took]) -> str:
    bare = [f"{took.p50 * 1e3:,.0f} / {took.p95 * 1e3:,.0f}; " for took in own if took.ask.name == BARE]
    slowest = max(own, key=lambda took: took.p95)
    together = p95([second for took in own for second in took.seconds])
    return f"{''.join(bare)}{together * 1e3:,.0f}; {slowest.p95 * 1e3:,.0f} ({slowest.ask.name})"


def _json(found: dict[int, list[Took]]) -> dict[str, list[dict[str, object]]]:
    return {
        str(size): [
            {"page": took.ask.title, "filter": took.ask.name, "seconds": [round(s, 4) for s in took.seconds]} for took in told
        ]
        for size, told in found.items()
    }


if __name__ == "__main__":
    main()
