"""What `make audit` makes of pip-audit's answers: a hole is a failure, and what could not be asked is never called clean."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.__main__ import main, verdict

GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}


@pytest.mark.parametrize(("packages", "words", "holes"), [
    pytest.param([GOOD], "1 packages looked up; no known hole", (), id="clean"),
    pytest.param([GOOD, BAD], "2 packages looked up; b 2: PYSEC-1", ("b 2: PYSEC-1",), id="a hole"),
    pytest.param([GOOD, UNKNOWN], "1 packages looked up, 1 that the service does not know; no known hole", (), id="one not known"),
    pytest.param([UNKNOWN], "NOT AUDITED", (), id="none known"), pytest.param([], "NOT AUDITED", (), id="nothing"),
    pytest.param(None, "NOT AUDITED", (), id="no answer"),
])  # fmt: skip
def test_a_verdict(packages: list[dict[str, object]] | None, words: str, holes: tuple[str, ...]) -> None:
    found = verdict(None if packages is None else {"dependencies": packages})
    assert found.holes == holes
    assert found.text.startswith(words)


@pytest.mark.parametrize(("says", "status", "words"), [
    ('{"dependencies": [{"name": "b", "version": "2", "vulns": [{"id": "X-1"}]}]}', 1, "X-1"),
    ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, "no known hole"),
    (None, 0, "NOT AUDITED"),
])  # fmt: skip
def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str], says: str | None, status: int, words: str) -> None:
    """By a scanner that says what it is told to."""
    scanner = tmp_path / "pip-audit"
    write = "" if says is None else f"while [ \"$1\" != -o ]; do shift; done; echo '{says}' > \"$2\"; "
    scanner.write_text(f"#!/bin/sh\n{write}echo no network >&2; exit 1\n")
    scanner.chmod(0o755)
    assert main(str(scanner), "requirements.lock") == status
    assert words in capsys.readouterr().out
