"""The copy in ClickHouse: all entries, each once, whatever is lost on the way. (Here it is a server that knows the three
statements that are sent; `TOLLWAY_CLICKHOUSE=http://...` runs the same against a real one.)"""
from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.ledger import clickhouse
from gateway.ledger.clickhouse import TABLE, ClickHouse, definition
from gateway.ledger.rollups import Roller
from gateway.ledger.sql import Store, insert_entries
from tests.ledger.generate import entries, write

REAL = os.environ.get("TOLLWAY_CLICKHOUSE")


class Server(httpx.AsyncBaseTransport):
    """Keeps one row for each sorting key, as the real one does when it is read with FINAL."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.made: list[str] = []
        self.inserts = 0
        self.fault = ""
        self.headers: httpx.Headers = httpx.Headers()
        self._real = httpx.AsyncHTTPTransport() if REAL else None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        query, self.headers = request.url.params["query"], request.headers
        fault = self.fault
        if fault == "away":
            raise httpx.ConnectError("nobody there")
        answer = await self._real.handle_async_request(request) if self._real else self._answer(query, request)
        if query.startswith("INSERT"):
            self.inserts += 1
            if fault == "lost":
                raise httpx.ReadError("the answer was lost")
            if fault == "full":
                return httpx.Response(500, text="Code: 252. DB::Exception: Too many parts")
        return answer

    async def aclose(self) -> None:
        if self._real is not None:
            await self._real.aclose()

    def _answer(self, query: str, request: httpx.Request) -> httpx.Response:
        if query.startswith("CREATE TABLE IF NOT EXISTS"):
            self.made.append(query)
        elif query == f"SELECT max(seq) FROM {TABLE} FORMAT TabSeparated":
            return httpx.Response(200, text=f"{max((row['seq'] for row in self.rows.values()), default=0)}\n")
        elif query == f"INSERT INTO {TABLE} FORMAT JSONEachRow" and self.fault != "full":
            rows = [orjson.loads(line) for line in request.content.splitlines()]
            self.rows.update({(row["team"], row["at_us"], row["id"]): row for row in rows})
        return httpx.Response(200, text="")


@pytest.fixture
async def ledger(place: str) -> AsyncIterator[Store]:
    store = Store(place)
    yield store
    await store.close()


async def roll(store: Store) -> None:
    roller = Roller(store, lambda ids: None)
    while (await roller.step()).left:
        pass


@pytest.mark.skipif(REAL is not None, reason="looks into the server that is made up")
@pytest.mark.parametrize("fault", ["", "away", "lost", "full"])
async def test_every_entry_arrives_once(place: str, ledger: Store, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Through an outage at any insert; what has been sent is not sent again, corrections included."""
    monkeypatch.setattr(clickhouse, "BATCH", 100)
    written = list(entries(350, 1_764_072_000_000_000))
    write(place, written[:300])
    server = Server()
    copy = ClickHouse(ledger, "http://ann:secret@ch.test:8123/tolls", transport=server)
    await copy.step()
    assert server.rows == {}                        # nothing has been rolled up yet
    await roll(ledger)
    server.fault = fault
    if fault:
        with pytest.raises(OSError, match="ClickHouse"):
            await copy.step()
        server.fault = ""
    await copy.step()
    async with ledger.begin() as connection:
        await insert_entries(connection, written[300:])
    await copy.step()
    await roll(ledger)
    await copy.step()
    await copy.close()
    assert sorted(row["id"] for row in server.rows.values()) == sorted(entry.id for entry in written)
    assert server.inserts <= 5
    sent = {row["id"]: row for row in server.rows.values()}
    for entry in written:
        row = sent[entry.id]
        assert (row["cost_nanos"], row["uncached"], row["status"], row["kind"]) == (entry.cost_nanos, entry.tokens.uncached, entry.status, entry.kind)
        assert orjson.loads(row["tags"]) == dict(entry.tags)
    assert (server.headers["x-clickhouse-user"], server.headers["x-clickhouse-key"]) == ("ann", "secret")
    assert set(server.made) == {definition()}


@pytest.mark.skipif(REAL is None, reason="needs TOLLWAY_CLICKHOUSE")
async def test_a_real_one_says_what_the_ledger_says(place: str, ledger: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums by status and team, after an insert whose answer was lost."""
    monkeypatch.setattr(clickhouse, "BATCH", 100)
    written, server = list(entries(350, 1_764_072_000_000_000)), Server()
    write(place, written)
    await roll(ledger)
    copy = ClickHouse(ledger, str(REAL), transport=server)
    await copy._ask(f"DROP TABLE IF EXISTS {TABLE}")
    server.fault = "lost"
    with pytest.raises(OSError, match="ClickHouse"):
        await copy.step()
    server.fault = ""
    await copy.step()
    told = await copy._ask(f"SELECT count(), sum(cost_nanos), sum(uncached), uniqExact(id) FROM {TABLE} FINAL FORMAT TabSeparated")
    costs, tokens = (sum(found or 0 for found in values) for values in zip(*((e.cost_nanos, e.tokens.uncached) for e in written), strict=True))
    assert told.split() == [str(number) for number in (len(written), costs, tokens, len(written))]
    await copy.close()


def test_the_table_has_a_column_for_each_of_the_ledgers(tmp_path: Path) -> None:
    """With whole numbers for money and tokens, and NULL where it means that something was not told."""
    told = definition()
    assert "`cost_nanos` Nullable(Int64)" in told
    assert "`id` String" in told
    assert "`stream` UInt8" in told
    assert "`total_ms` Float64" in told
