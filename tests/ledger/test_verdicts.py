"""Verdicts are kept in the ledger and counted in no sum."""
from __future__ import annotations

from pathlib import Path

from gateway.ledger.reports import connect
from gateway.ledger.verdicts import verdict
from tests.ledger.generate import entry, write
from tests.ledger.test_rollups import roll

NOW = 1_764_072_000_000_000


def said(passed: bool, at_us: int, subgoal: str = "edit", team: str = "search") -> object:
    return verdict(team=team, project=None, key_id="k", run="r-1", subgoal=subgoal, passed=passed, evidence="pytest", at_us=at_us)


def test_the_last_verdict_holds_and_costs_nothing(tmp_path: Path) -> None:
    url = write(tmp_path / "l.db", [
        entry(id="a-1", run="r-1", subgoal="edit", at_us=NOW), said(False, NOW + 1), said(True, NOW + 2), said(False, NOW + 3, "plan"),
        said(False, NOW + 4, team="other"),
    ])  # type: ignore[list-item]  # fmt: skip
    report = connect(url)
    for _ in range(2):
        run = report.run("r-1", "search")
        assert run is not None
        assert [(goal["subgoal"], goal["calls"], goal["verdict"]["passed"]) for goal in run["subgoals"]] == [("edit", 1, True)]
        assert run["other_verdicts"]["plan"]["evidence"] == "pytest"
        assert [row.key for row in report.spend(("status",)).rows] == [("ok",)]
        assert report.extent().entries == 1
        roll(url)
