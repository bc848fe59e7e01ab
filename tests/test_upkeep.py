"""Upkeep goes on by itself: what fails is tried again, what is slow leaves when it is told to."""
from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.ledger.reports import connect
from gateway.ledger.rollups import Rolled, Roller
from gateway.ledger.sql import Store
from gateway.upkeep import Upkeep
from tests.ledger.generate import entries, write


async def test_upkeep_rolls_and_goes_on_after_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = write(tmp_path / "ledger.db", entries(60, 1_764_072_000_000_000))
    turns, enough = list[int](), asyncio.Event()

    async def job() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise OSError("away")
        if len(turns) > 3:
            enough.set()

    store = Store(url)
    roller = Roller(store, lambda ids: None)
    upkeep = Upkeep(roller, [job], every_s=0.01)
    with caplog.at_level(logging.WARNING, "tollway.upkeep"):
        upkeep.start()
        await asyncio.wait_for(enough.wait(), 120)
        await upkeep.close()
    assert len([record for record in caplog.records if "waits for the database" in record.message]) == 1
    assert (await roller.step()).left == 0
    await store.close()
    assert (await asyncio.to_thread(connect(url).spend)).total.attempts == 60


async def test_roll_ups_rest_longer_than_they_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has gathered is added in pieces with rests between, so that calls which come meanwhile do not queue behind it."""
    rests, left = list[float](), [3, 2, 1, 0]

    class Slow(Roller):
        async def damaged(self) -> bool:
            return False

        async def step(self, chunk: int = 0) -> Rolled:
            await asyncio.sleep(0.01)
            return Rolled(1, left.pop(0))

    async def rest(until: asyncio.Event, seconds: float) -> None:
        assert not until.is_set()
        rests.append(seconds)

    async def job() -> None: ...

    monkeypatch.setattr("gateway.upkeep._wait", rest)
    store = Store(f"sqlite:///{tmp_path}/t.db")
    upkeep = Upkeep(Slow(store, lambda ids: None))
    upkeep.add(job)         # which is not to wait, and is no reason to hurry
    await upkeep.roll()
    await store.close()
    assert len(rests) == 3
    assert min(rests) >= 4 * 0.009
