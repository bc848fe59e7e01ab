"""One row of each process; who was silent for a day is gone."""
from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import update

from gateway.ledger import reports
from gateway.ledger.sql import Store
from gateway.ledger.watch_tables import STATUS
from gateway.status_table import KEEP_US, StatusTable
from tests.ledger.generate import write


def test_the_last_word_of_each_stays_for_a_day(tmp_path: Path) -> None:
    url = write(tmp_path / "ledger.db", [])

    async def work() -> None:
        store = Store(url)
        table = StatusTable(store)
        await table.say("old", {"journal_lag": 1})
        async with store.begin() as connection:
            await connection.execute(update(STATUS).values(at_us=STATUS.c.at_us - KEEP_US - 1))
        for lag in (2, 3):
            await table.say("new", {"journal_lag": lag})
        await store.close()

    asyncio.run(work())
    report = reports.connect(url)
    assert [(said["gateway"], said["journal_lag"]) for said in report.status()] == [("new", 3)]
    report.close()
