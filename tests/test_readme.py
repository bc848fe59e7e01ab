"""The README is run, not believed: its links lead somewhere, its YAML is a policy, its commands exist."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.settings import load as load_settings
from router_policies.files import load_file

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(((?!http)[^)#]+)", README))))
def test_every_link_leads_to_a_file(target: str) -> None:
    """A newcomer never follows a link into nothing."""
    assert (ROOT / target).exists()


def test_the_policy_file_is_one(tmp_path: Path) -> None:
    """The policy in the README can be copied as it stands."""
    (file,) = [block for block in blocks("yaml") if "team:" in block]
    (tmp_path / "search.yaml").write_text(file, encoding="utf-8")
    assert load_file(tmp_path / "search.yaml").default_class == "interactive"


def test_the_settings_are_such(tmp_path: Path) -> None:
    """So can the settings."""
    (file,) = [block for block in blocks("yaml") if "backends:" in block]
    (tmp_path / "tollway.yaml").write_text(file, encoding="utf-8")
    assert set(load_settings(tmp_path / "tollway.yaml", {"OPENAI_API_KEY": "sk-x"}).backends) == {"openai", "pool"}


@pytest.mark.parametrize("line", sorted({m.split("#")[0].strip() for m in re.findall(r"\.venv/bin/tollway ([^\n]+)", README)}))
def test_every_command_exists(line: str) -> None:
    """Each `tollway` command of the README is known to the program, with its options."""
    words = [word for word in line.split() if word.islower()]
    group = [word for word in words if not word.startswith("-")][:2]
    runner = CliRunner()
    for take in (group, group[:1]):
        found = runner.invoke(main, [*take, "--help"])
        if found.exit_code == 0:
            break
    assert found.exit_code == 0, found.output
    for option in [word for word in words if word.startswith("--")]:
        assert option in found.output


@pytest.mark.parametrize("block", blocks("python"))
def test_python_blocks_compile(block: str) -> None:
    """The SDK snippets are valid Python; tests/flow runs the same calls against a real gateway."""
    compile(block, "README.md", "exec")
