"""`tollway policy check`: what is wrong is an error, what nothing serves a warning."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

SETTINGS = "backends: {openai: {dialect: openai, url: 'https://api.openai.com/v1', key: env:NOT_SET_HERE, models: [gpt-5.5]}}\n"
POLICY = "team: a\nmodels: {allow: [gpt-5.5, smollm2-135m-instruct, gtp-5.5]}\nclasses: {agent: {lanes: [overnight]}}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "teams").mkdir()
    (tmp_path / "teams" / "a.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_that_nothing_serves_are_warnings(here: Path) -> None:
    """Compared with the settings at hand and what `tollway up` adds to them; exit 0, file and line, the nearest name."""
    (here / "tollway.yaml").write_text(SETTINGS)
    done = CliRunner().invoke(main, ["policy", "check", "teams"])
    first, second = done.stderr.splitlines()
    assert (done.exit_code, "all good" in done.stdout) == (0, True)
    assert first.startswith("warning: teams/a.yaml:2:")
    assert "did you mean `gpt-5.5`?" in first
    assert "classes.agent.lanes[0]: no backend has such a lane (known: fast, standard)" in second
    told = json.loads(CliRunner().invoke(main, ["policy", "check", "teams", "--json"]).stdout)
    assert [(one["severity"], one["line"], one["path"]) for one in told] == [("warning", 2, "models.allow[2]"), ("warning", 3, "classes.agent.lanes[0]")]


def test_without_settings_there_is_nothing_to_compare_with(here: Path) -> None:
    """A folder of policies is checked by itself, unless settings are named."""
    assert CliRunner().invoke(main, ["policy", "check", "teams"]).stderr == ""
    (here / "other.yaml").write_text(SETTINGS)
    assert "warning: " in CliRunner().invoke(main, ["policy", "check", "teams", "--config", "other.yaml"]).stderr
    (here / "other.yaml").write_text("backend: {}")
    bad = CliRunner().invoke(main, ["policy", "check", "teams", "--config", "other.yaml"])
    assert (bad.exit_code, "backends" in bad.stderr) == (1, True)


def test_mistakes_come_first(here: Path) -> None:
    """Exit 1, and of severity error."""
    (here / "tollway.yaml").write_text(SETTINGS)
    (here / "teams" / "a.yaml").write_text(POLICY.replace("allow", "alow"))
    done = CliRunner().invoke(main, ["policy", "check", "teams", "--json"])
    assert (done.exit_code, [one["severity"] for one in json.loads(done.stdout)]) == (1, ["error"])
