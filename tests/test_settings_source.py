"""Whoever edits the settings of a running gateway is told that a restart is needed, and whether it would work."""
from __future__ import annotations

from pathlib import Path

import pytest

from gateway.serve import read_settings
from gateway.settings_source import SettingsSource

GOOD = 'backends: {b: {dialect: openai, url: "http://127.0.0.1:1/v1", models: [m]}}\n'


def source(file: Path) -> SettingsSource:
    settings = read_settings(file, None, None)
    return SettingsSource(settings.file, settings.file_digest)


def test_a_change_is_told_once_and_taken_back(tmp_path: Path) -> None:
    """Only what stands in the file counts: touching it or putting it back needs no restart."""
    file = tmp_path / "tollway.yaml"
    file.write_text(GOOD)
    seen = source(file)
    file.touch()
    assert [seen.look(), seen.look(), seen.warning] == [False, False, None]
    file.write_text(GOOD + "retries: 1\n")
    assert [seen.look(), seen.look(), seen.look()] == [False, True, False], "half written, told, told already"
    assert "restarted" in str(seen.warning)
    assert str(file) in str(seen.warning)
    file.write_text(GOOD)
    assert [seen.look(), seen.look(), seen.warning] == [False, True, None]


@pytest.mark.parametrize(("text", "words"), [("retrys: 1\n", "retries"), (None, "is gone")], ids=["a slip", "gone"])
def test_a_file_that_a_restart_would_refuse_says_so(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "tollway.yaml"
    file.write_text(GOOD)
    seen = source(file)
    file.unlink() if text is None else file.write_text(GOOD + text)
    assert [seen.look(), seen.look()] == [False, True]
    assert words in str(seen.warning)
    assert "a restart would fail" in str(seen.warning)


def test_without_a_file_nothing_is_told() -> None:
    seen = SettingsSource(None, None)
    assert [seen.look(), seen.look(), seen.warning] == [False, False, None]
