"""A run is told as far as it is of who asks."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger.reports import Reports, connect
from tests.ledger.generate import entry, write

AT = 1_764_000_000_000_000


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Reports]:
    """One run's name, used by two projects and two teams; a run under it."""
    whose = (("search", "web"), ("search", "ads"), ("support", "web"))
    some = [
        entry(id=f"a-{n}", call_id=f"c-{n}", at_us=AT + n, run="r", team=team, project=project, subgoal=project, cost_nanos=10**n)
        for n, (team, project) in enumerate(whose)
    ]
    under = entry(id="u", call_id="u", at_us=AT + 9, run="under", parent_run="r", team="search", project="ads", cost_nanos=1_000)
    opened = connect(write(tmp_path / "ledger.db", [*some, under]))
    yield opened
    opened.close()


@pytest.mark.parametrize(("team", "project", "own", "under"), [
    (None, None, "012", "u"), ("search", None, "01", "u"), ("search", "web", "0", ""), ("search", "ads", "1", "u"),
    ("support", "web", "2", ""), ("support", "ads", "", ""),
])  # fmt: skip
def test_a_run_is_told_to_a_team_and_to_a_project_as_far_as_it_is_theirs(
    report: Reports, team: str | None, project: str | None, own: str, under: str
) -> None:
    found, calls = report.run("r", team, project), report.run_calls("r", team, project)
    assert [call["id"] for call in calls] == [*(f"c-{n}" for n in own), *under]
    assert len((report.run_trace("r", team, project) or {"trace": []})["trace"]) == len(own) + len(under)
    assert [report.call(f"c-{n}", team, project) is not None for n in range(3)] == [str(n) in own for n in range(3)]
    if not own:
        assert found is None
        return
    assert found is not None
    assert found["calls"] == len(own)
    assert sorted(call["id"] for call in found["latest_calls"]) == [f"c-{n}" for n in own]
    assert {goal["subgoal"] for goal in found["subgoals"]} == {("web", "ads", "web")[int(n)] for n in own}
