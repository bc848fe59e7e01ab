"""A shut ledger says why, and opens by itself."""
from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.ledger import reports
from gateway.ledger.reports import LedgerUnavailable
from gateway.ledger.sql import Store
from tests.ledger.generate import entry, write


def test_a_ledger_that_is_not_there_yet(tmp_path: Path) -> None:
    """No file is made by looking; once the gateway has made it, the same object reads it."""
    report = reports.connect(f"sqlite:///{tmp_path}/t.db")
    with pytest.raises(LedgerUnavailable, match="Start the gateway") as caught:
        report.spend()
    assert caught.value.why == "missing"
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "t.db", [entry()])
    assert report.spend().total.calls == 1
    (tmp_path / "t.db").unlink()
    write(tmp_path / "t.db", [entry(id="a-1"), entry(id="a-2", call_id="c-2")])
    assert report.spend().total.calls == 2


@pytest.mark.parametrize(("content", "why"), [(b"", "schema"), (b"not a database at all" * 99, "schema")])
def test_a_file_that_is_no_ledger(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "t.db").write_bytes(content)
    with pytest.raises(LedgerUnavailable) as caught:
        reports.connect(f"sqlite:///{tmp_path}/t.db").spend()
    assert caught.value.why == why


def test_a_ledger_that_is_locked(tmp_path: Path) -> None:
    """An exclusive lock is reported as one, after a short patience."""
    url = write(tmp_path / "t.db", [entry()])
    other = sqlite3.connect(tmp_path / "t.db")
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable) as caught:
        reports.connect(url).spend()
    other.close()
    assert caught.value.why == "locked"
    assert reports.connect(url).spend().total.calls == 1


def test_a_server_that_does_not_answer() -> None:
    """The text names no address."""
    report = reports.connect("postgresql://u:secret@127.0.0.1:1/d")
    with pytest.raises(LedgerUnavailable, match="does not answer") as caught:
        report.spend()
    report.close()
    assert caught.value.why == "away"


def test_reading_cannot_write(place: str) -> None:
    """Both databases refuse a write on a reader's connection."""
    report = reports.connect(write(place, [entry()]))
    with pytest.raises(LedgerUnavailable):
        report._reader.read(text("DELETE FROM ledger"))
    assert report.spend().total.calls == 1
    report.close()


GRANTS = (
    "DROP ROLE IF EXISTS tollway_reader", "CREATE ROLE tollway_reader LOGIN", "GRANT USAGE ON SCHEMA public TO tollway_reader",
    "GRANT SELECT ON ledger, rollup, rollup_latency, rollup_values, rollup_state, price_rates, gateway_status, alerts, keys, users, "
    "memberships, audit TO tollway_reader",
)  # fmt: skip
"""As docs/dashboard.md has them."""


def test_a_role_that_may_only_read_is_enough_for_reports(postgres_url: str) -> None:
    """Every question that the dashboard asks, and not a row more."""
    write(postgres_url, [entry(run="r-1", miss={"kind": "edit", "path": "/tools/1"})])
    run(postgres_url, "DROP OWNED BY tollway_reader" if exists(postgres_url) else "SELECT 1", *GRANTS)
    reader = postgres_url.replace("gw@", "tollway_reader@")
    report = reports.connect(reader)
    assert report.spend(("team",)).total.calls == 1
    part = reports.Slice()
    asked = (
        report.waits((("lane",),), part, bars=("lane",)), report.call_list(part, "r-1"), report.runs(part), report.run("r-1"),
        report.misses(part), report.savings(part), report.extent(part), report.values("model", part), report.decisions(part),
    )  # fmt: skip
    assert all(found is not None for found in asked)
    assert [cause.kind for cause in report.misses(part)] == ["edit"]
    assert (report.status(), report.alerts(), report.backtests()) == ([], [], [])
    assert (report.key_by_digest("x", 1), report.person("i", "s"), report.rolled()) == (None, None, (0, 0))
    with pytest.raises(DBAPIError, match="permission denied"):
        run(reader, "DELETE FROM ledger")
    report.close()
    run(postgres_url, "DROP OWNED BY tollway_reader", "DROP ROLE tollway_reader")


def exists(url: str) -> bool:
    return bool(run(url, "SELECT 1 FROM pg_roles WHERE rolname = 'tollway_reader'"))


def run(url: str, *statements: str) -> list[object]:
    """The rows of the last one."""

    async def work() -> list[object]:
        store, rows = Store(url), list[object]()
        try:
            async with store.begin() as connection:
                for statement in statements:
                    found = await connection.exec_driver_sql(statement)
                    rows = list(found.all()) if found.returns_rows else []
        finally:
            await store.close()
        return rows

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work()).result()
