"""The table of promises, and that an experiment of it runs."""
from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.contract import EXPERIMENTS, PROMISES, Reached, Scale
from benchmarks.contract.__main__ import document, main, measured, table


def test_every_promise_has_its_line() -> None:
    """Measured or not; a promise that is not kept is listed as such."""
    out = io.StringIO()
    Console(file=out, width=200).print(table({"C8": Reached("P99 3 ms", kept=True, done="10"), "C9": Reached("2x", kept=False, done="10")}))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("│")] == list(PROMISES) == [f"C{n}" for n in range(1, 28)]
    assert sum("not measured" in line for line in lines) == 25
    assert any("NO" in line and "2x" in line for line in lines)


def test_a_document_has_all_lines() -> None:
    """What was not measured is null, not kept and not broken."""
    found = document({"C8": Reached("P99 3 ms", kept=True, done="10")}, PROMISES)
    assert list(found) == list(PROMISES)
    assert (found["C8"]["kept"], found["C9"]["kept"], found["C9"]["promised"]) == (True, None, PROMISES["C9"].figure)


def test_what_breaks_off_does_not_stop_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Scale) -> Reached:
        raise OSError("no disk")

    monkeypatch.setitem(EXPERIMENTS, "C8", breaks)
    monkeypatch.setitem(EXPERIMENTS, "C9", lambda _: Reached("1.0x", kept=True, done="all"))
    found = measured(["C8", "C9"], Scale())
    assert (found["C8"].kept, "no disk" in found["C8"].figure, found["C9"].kept) == (False, True, True)


def test_a_line_that_does_not_exist_is_wrong_use() -> None:
    assert CliRunner().invoke(main, ["C99"]).exit_code == 2


def test_deadlines_are_measured() -> None:
    """One short experiment from end to end: a real gateway, real sockets."""
    result = CliRunner().invoke(main, ["C10", "--json"])
    found = json.loads(result.stdout)
    assert set(found) == {"C10"}
    assert found["C10"]["done"] == "time-outs of (2.0,) s"
