"""One suite for every store of entries: what is appended is read back equal, once."""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, Ledger, reports
from gateway.ledger.journal import Journal
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.schema import upgrade
from gateway.ledger.sql import SqlLedger, Store
from gateway.ledger.tables import LEDGER
from tests.ledger.generate import entries, entry
from tests.ledger.postgres import Postgres, binaries

Read = Callable[[], AbstractAsyncContextManager[list[Entry]]]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("no PostgreSQL: install the test extra")
    server = Postgres(bin_dir)
    yield server.url
    server.stop()


class Opened:
    """A ledger and a way to read all that is in it."""

    def __init__(self, ledger: Ledger, url: str | None = None) -> None:
        self.ledger, self._url = ledger, url

    async def read(self) -> list[Entry]:
        if isinstance(self.ledger, MemoryLedger):
            return self.ledger.entries
        assert isinstance(self.ledger, SqlLedger)
        assert self._url is not None
        assert await self.ledger.flush()
        report = reports.connect(self._url)
        try:
            return await asyncio.to_thread(report.entries)
        finally:
            report.close()


@contextlib.asynccontextmanager
async def sql(url: str, folder: Path) -> AsyncIterator[Opened]:
    store, journal = Store(url), Journal(folder, "process")
    await upgrade(store.url)
    ledger = SqlLedger(store, journal)
    await ledger.start()
    yield Opened(ledger, url)
    async with store.begin() as connection:
        await connection.execute(LEDGER.delete())
    await ledger.close()
    journal.close()
    await store.close()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    if request.param == "memory":
        yield Opened(MemoryLedger())
        return
    url = f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with sql(url, tmp_path / "journal") as store:
        yield store


EVERYTHING = entry(
    project="p", client="curl", run="r", parent_run="r0", subgoal="edit", tags={"ünï": "日本 'quoted' \"too\""}, served_model="m-1",
    served_tier="flex", decision=({"lane": "fast", "cost": 1.5, "refused": None},), receipts=({"pass": "sort", "place": [0, 1]},),
    error="x" * 5_000, miss={"kind": "timestamp", "line": 3}, predicted_read_tokens=9, cost_nanos=2**62, uncached_cost_nanos=2**62,
    tokens=TokenUsage(uncached=2**40, cache_read=0, cache_write={"5m": 1, "1h": 0, "30m": 3, "12h": 4, "unknown": 5}, output=6,
                      reasoning=7, other={"audio_in": 8}, flags=("cached_exceeds_prompt",)),
)  # fmt: skip


@pytest.mark.parametrize("kept", [
    pytest.param(entry(), id="a plain one"),
    pytest.param(EVERYTHING, id="every field set"),
    pytest.param(entry(tokens=TokenUsage(), cost_nanos=None, uncached_cost_nanos=None), id="nothing reported, price not known"),
    pytest.param(entry(tokens=TokenUsage(uncached=0, cache_read=0, output=0), cost_nanos=0), id="reported as none, free"),
    pytest.param(entry(kind="correction", corrects="a-0", cost_nanos=-5, tokens=TokenUsage(output=-3)), id="a correction downwards"),
])  # fmt: skip
async def test_an_entry_comes_back_as_it_went_in(opened: Opened, kept: Entry) -> None:
    await opened.ledger.append(kept)
    assert await opened.read() == [kept]


async def test_an_id_is_booked_once(opened: Opened) -> None:
    """Replays and retries of the same write change nothing; what came first stands."""
    for _ in range(3):
        await opened.ledger.append(entry())
    await opened.ledger.append(replace(entry(), cost_nanos=1))
    assert await opened.read() == [entry()]


async def test_an_entry_that_no_store_can_hold_is_mended_and_kept(opened: Opened) -> None:
    """An upstream's text may hold anything; a bill is booked all the same."""
    await opened.ledger.append(entry(error="half \ud800 and \0", tags={"a\0": "b"}, cost_nanos=2**70))
    (kept,) = await opened.read()
    if not isinstance(opened.ledger, MemoryLedger):
        assert (kept.error, kept.cost_nanos) == ("half ? and \N{REPLACEMENT CHARACTER}", 2**63 - 1)


async def test_many_at_once_are_all_there(opened: Opened) -> None:
    """More than a batch, appended together."""
    some = list(entries(1_200, 1_764_000_000_000_000))
    await asyncio.gather(*(opened.ledger.append(one) for one in some))
    found = await opened.read()
    assert sorted(found, key=lambda e: e.id) == sorted(some, key=lambda e: e.id)
