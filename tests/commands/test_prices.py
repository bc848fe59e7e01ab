"""`tollway prices`: what is in force, what is wrong, and what a newer file would change, before anything is written."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

NEW = '[openai]\nrows = [{model = "gpt-5.5", valid_from = 2026-12-24, input = "4", cached = "0.4", output = "25"}]\n'


def run(*argv: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["prices", *argv])
    return done.exit_code, done.output if done.exit_code else done.stdout


def test_a_model_is_shown_with_its_tiers() -> None:
    """Every row in force, with its prices as they were written."""
    code, text = run("show", "openai/gpt-5.5", "--at", "2026-11-30", "--json")
    rows = {row["tier"]: row["prices"] for row in json.loads(text) if not row["over"]}
    assert code == 0
    assert rows["default"]["input"] == "5"
    assert rows["priority"]["input"] == "12.5"


def test_an_unknown_model_gets_the_nearest_names() -> None:
    """Exit 1, and what it may have been."""
    code, text = run("show", "openai/gpt-5.55")
    assert code == 1
    assert "did you mean" in text


def test_the_shipped_files_are_good() -> None:
    """Exit 0; a file with a slip is exit 1 and says where."""
    assert run("check") == (0, "all good\n")


def test_without_files_those_of_the_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the gateway itself will read them."""
    (tmp_path / "tollway.yaml").write_text("backends: {}\nprices: [mine.toml]\n")
    (tmp_path / "mine.toml").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    shown = run("show", "openai/gpt-5.5", "--at", "2026-12-24", "--json")
    assert "mine:openai/gpt-5.5@2026-12-24" in {row["id"] for row in json.loads(shown[1])}
    assert run("check") == (0, "all good\n")
    (tmp_path / "mine.toml").write_text(NEW.replace("cached", "cachd"))
    assert (run("check")[0], run("show", "openai/gpt-5.5")[0]) == (1, 1)


def test_a_slip_is_told(tmp_path: Path) -> None:
    """The nearest known column is named."""
    (tmp_path / "mine.toml").write_text(NEW.replace("cached", "cachd"))
    code, text = run("check", str(tmp_path / "mine.toml"))
    assert code == 1
    assert "cached" in text


def test_an_update_shows_first_and_writes_then(tmp_path: Path) -> None:
    """The diff names rows and amounts; nothing is written without --into, nor before the answer is yes."""
    source, into = tmp_path / "new.toml", tmp_path / "mine.toml"
    source.write_text(NEW)
    code, text = run("update", str(source))
    assert (code, into.exists()) == (0, False)
    assert "input - -> 4" in text
    code, _ = run("update", str(source), "--into", str(into))
    assert (code, into.exists()) == (1, False)
    code, _ = run("update", str(source), "--into", str(into), "--yes")
    assert (code, into.read_text()) == (0, NEW)
    source.write_text(NEW.replace('"25"', '"26"'))
    _, text = run("update", str(source), "--into", str(into), "--json", "--yes")
    assert [(change["before"]["prices"]["output"], change["after"]["prices"]["output"]) for change in json.loads(text)] == [("25", "26")]


def test_the_package_is_what_the_shipped_rows_were_made_of() -> None:
    """With the version that is locked nothing differs."""
    pytest.importorskip("genai_prices")
    assert run("update", "--json") == (0, "[]\n")
