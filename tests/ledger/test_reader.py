"""A shut ledger says why, and opens by itself."""
from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.ledger import reports
from gateway.ledger.reports import LedgerUnavailable
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
