"""How long a start takes with entries that a killed process left in the journal, and whether all of them arrive.

    python -m benchmarks.recovery [--entries 100000]
"""
from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from gateway.ledger import reports
from gateway.ledger.journal import Journal
from gateway.ledger.schema import upgrade
from gateway.ledger.sql import SqlLedger, Store
from tests.ledger.generate import entries

PROMISED_S = 3.0


async def run(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = Journal(folder / "journal", "process")
        for entry in entries(count, 1_764_000_000_000_000):
            await first.settle(entry)
        size = sum(path.stat().st_size for path in (folder / "journal").glob("*.journal"))
        first.close()
        url = f"sqlite:///{folder}/t.db"
        await upgrade(url)
        began, cpu = time.perf_counter(), time.process_time()
        journal, store = Journal(folder / "journal", "process"), Store(url)
        found = journal.recover()
        read_s, read_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        ledger = SqlLedger(store, journal)
        await ledger.start(found)
        ready_s = time.perf_counter() - began
        while not await ledger.flush(60.0):
            pass
        all_s = time.perf_counter() - began
        await ledger.close()
        journal.close()
        await store.close()
        report = reports.connect(url)
        booked = report.spend().total.attempts
        report.close()
    print(f"{count:,} entries left behind, {size / 2**20:.0f} MiB of journal")
    print(f"read from the journal {read_s:.2f} s ({read_cpu_s:.2f} s of CPU)")
    print(f"calls are taken after {ready_s:.2f} s (promised: {PROMISED_S:g} s)")
    print(f"all in SQLite after {all_s:.1f} s; booked {booked:,}, lost {count - booked:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    asyncio.run(run(parser.parse_args().entries))


if __name__ == "__main__":
    main()
