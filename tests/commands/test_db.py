"""`tollway db`: what it says and how it ends."""
from __future__ import annotations

import json
from pathlib import Path

from gateway.ledger.schema import REVISION
from tests.build import command


def test_a_database_is_made_looked_at_and_taken_back(tmp_path: Path) -> None:
    """Exit 1 while database and program differ; a downgrade asks first."""
    data = ("--data", str(tmp_path))
    assert command("db", "status", *data) == (1, f"database empty, program {REVISION}\n")
    assert command("db", "upgrade", *data)[0] == 0
    status, said = command("db", "status", *data, "--json")
    assert (status, json.loads(said)["current"]) == (0, True)
    assert "nothing to do" in command("db", "upgrade", *data)[1]
    assert command("db", "downgrade", "0001", *data)[0] == 1
    assert command("db", "downgrade", "0001", *data, "--yes")[0] == 0
    assert command("db", "status", *data)[1].startswith("database 0001")
    assert command("db", "upgrade", *data)[0] == 0


def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path) -> None:
    """No such revision, no such server, a file that is no database: exit 1, no stack trace."""
    data = ("--data", str(tmp_path))
    command("db", "upgrade", *data)
    (tmp_path / "away.yaml").write_text('{"database_url": "postgresql://gw@127.0.0.1:9/x"}')
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "tollway.db").write_bytes(b"not a database, but long enough to be looked at" * 40)
    for argv, says in (
        (("downgrade", "9999", *data, "--yes"), "no older schema '9999'"),
        (("status", "--config", str(tmp_path / "away.yaml")), "database_url"),
        (("status", "--data", str(tmp_path / "noise")), "database_url"),
    ):
        status, said = command("db", *argv)
        assert status == 1, said
        assert says in said
        assert "Traceback" not in said
