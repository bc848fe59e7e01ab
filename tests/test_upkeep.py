"""Upkeep goes on by itself: what fails is tried again, what is slow leaves when it is told to."""
from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.ledger.reports import connect
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store
from gateway.upkeep import Upkeep
from tests.ledger.generate import entries, write


async def test_upkeep_rolls_and_goes_on_after_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = write(tmp_path / "ledger.db", entries(60, 1_764_072_000_000_000))
    turns: list[int] = []

    async def job() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise OSError("away")

    store = Store(url)
    roller = Roller(store, lambda ids: None)
    upkeep = Upkeep(roller, [job], every_s=0.01)
    with caplog.at_level(logging.WARNING, "tollway.upkeep"):
        upkeep.start()
        for _ in range(500):
            if len(turns) > 3:
                break
            await asyncio.sleep(0.01)
        await upkeep.close()
    assert len(turns) > 3
    assert len([record for record in caplog.records if "waits for the database" in record.message]) == 1
    assert (await roller.step()).left == 0
    await store.close()
    assert (await asyncio.to_thread(connect(url).spend)).total.attempts == 60
