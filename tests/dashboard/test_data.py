"""Answers are shared only between those who asked the same of the same ledger."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard import data
from dashboard.data import Slice, Viewer
from gateway.ledger.reports import Reports
from tests.ledger.generate import entry, write


def test_the_team_is_part_of_the_question(look: Callable[[str], Reports]) -> None:
    look("busy")
    mine, theirs = (data.spend((), Slice(where={"team": team})).total for team in ("search", "support"))
    assert mine != theirs
    assert data.spend((), Slice(where={"team": "search"})).total == mine


def test_another_ledger_is_another_question(look: Callable[[str], Reports], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look("one")
    assert data.spend((), Slice()).total.calls == 1
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", write(tmp_path / "other.db", [entry(id=f"a-{n}", call_id=f"c-{n}") for n in range(3)]))
    assert data.spend((), Slice()).total.calls == 3
    assert data.extent(Viewer("nobody")).entries == 0
