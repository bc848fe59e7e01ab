"""Names that nothing serves are told with their place and the nearest name there is; what may be meant is not."""
from __future__ import annotations

from pathlib import Path

import pytest

from router_policies.unserved import Served, unserved

HERE = Served(frozenset({"gpt-5.5", "gpt-5.4-mini", "llama-70b"}), frozenset({"fast", "standard"}), frozenset({"openai", "pool-eu"}))


def told(folder: Path, text: str, here: Served = HERE) -> dict[str, str]:
    (folder / "a.yaml").write_text(f"team: a\n{text}\n")
    return {problem.path: problem.hint for problem in unserved(folder, here)}


@pytest.mark.parametrize(("text", "path", "hint"), [
    ("models: {allow: [gpt-5.5, gtp-5.5]}", "models.allow[1]", "gpt-5.5"),
    ("models: {allow: ['gtp-*', '*']}", "models.allow[0]", "gpt-5.4-mini"),
    ("models: {aliases: {default: llama-7b}}", "models.aliases.default", "llama-70b"),
    ("models: {fallbacks: {gpt-5.5: [llama-8b, llama-70b]}}", "models.fallbacks.gpt-5.5[0]", "llama-70b"),
    ("classes: {agent: {lanes: [overnight]}}", "classes.agent.lanes[0]", "fast"),
    ("classes: {agent: {wait: {lanes: [overnight]}}}", "classes.agent.wait.lanes[0]", "fast, standard"),
    ("rules: [{name: n, when: {model: gpt-6}, class: batch}]", "rules[0].when.model", "gpt-5.5"),
    ("rules: [{name: n, when: stream, class: batch, lanes: [flex]}]", "rules[0].lanes[0]", "fast, standard"),
    ("budgets: [{name: b, limit_usd: 1, on_exhausted: downgrade, downgrade: {model: gpt-5.4-min, lanes: [fast]}}]", "budgets[0].downgrade.model", "mini"),
    ("limits: {rates: [{name: r, models: ['o9*'], concurrent: 1}]}", "limits.rates[0].models[0]", ""),
    ("backends: {allow: [opnai, 'pool-*']}", "backends.allow[0]", "openai"),
])  # fmt: skip
def test_a_slip_is_told(tmp_path: Path, text: str, path: str, hint: str) -> None:
    """Once, and nothing beside it."""
    found = told(tmp_path, text)
    assert list(found) == [path]
    assert hint in found[path]


@pytest.mark.parametrize("text", [
    "models: {allow: ['gpt-5*', default], deny: ['*-preview'], aliases: {default: gpt-5.5}}",
    "classes: {agent: {lanes: ['f*']}}\nbackends: {allow: ['pool-*']}",
    "description: gtp-5.5\ntests: [{name: t, given: {model: never-heard-of}, expect: {allowed: false}}]",
    "rules: [{name: n, when: {model: mine}, class: batch}]\nmodels: {aliases: {mine: llama-70b}}",
    "models: nonsense",
    "models: {aliases: 5, allow: 3, fallbacks: [7]}",
])  # fmt: skip
def test_what_may_be_meant_is_not(tmp_path: Path, text: str) -> None:
    """Patterns that match something, names of the team's own, refusals, and files that are wrong anyway."""
    assert told(tmp_path, text) == {}


@pytest.mark.parametrize("text", ["- a\n", "5\n", "", "a: [", "team: a\nteam: a\n", "extends: gone.yaml\n"])
def test_files_that_are_none_do_no_harm(tmp_path: Path, text: str) -> None:
    """They are told of where policies are loaded."""
    (tmp_path / "b.yaml").write_text(text)
    assert unserved(tmp_path, HERE) == []
    assert unserved(tmp_path / "nowhere", HERE) == []


def test_models_that_nobody_lists_are_not_looked_for(tmp_path: Path) -> None:
    """Where paths are passed through, any may come."""
    assert told(tmp_path, "models: {allow: [gemini-9]}\nclasses: {agent: {lanes: [overnight]}}", HERE._replace(models=frozenset())).keys() == {"classes.agent.lanes[0]"}


def test_what_is_inherited_is_told_once_where_it_stands(tmp_path: Path) -> None:
    """A base file's slip is not told for each team; what a team writes over is not told at all."""
    (tmp_path / "_base.yaml").write_text("models: {allow: [gtp-5.5]}\nbackends: {allow: [opnai]}\n")
    (tmp_path / "b.yaml").write_text("team: b\nextends: _base.yaml\nbackends: {allow: [openai]}\n")
    told(tmp_path, "extends: _base.yaml\nbackends: {allow: [openai]}")
    (problem,) = unserved(tmp_path, HERE)
    assert (Path(problem.file).name, problem.line, problem.path) == ("_base.yaml", 1, "models.allow[0]")
    assert "gtp" not in str(problem)
