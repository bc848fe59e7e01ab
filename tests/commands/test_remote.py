"""Which gateway a command asks, and with which key."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gateway.commands.remote import DEFAULT_URL, connect


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "admin").write_text("tw_admin\n")
    return tmp_path


def test_the_gateway_of_the_data_folder_is_asked(data: Path) -> None:
    """`tollway up` may listen anywhere; what is said on the command line wins."""
    (data / "run.json").write_text(json.dumps({"pid": os.getpid(), "gateway": "http://127.0.0.1:4810"}))
    assert (connect(None, None, data).url, connect(None, None, data).key) == ("http://127.0.0.1:4810", "tw_admin")
    assert (connect("http://x/", "k", data).url, connect("http://x/", "k", data).key) == ("http://x", "k")


@pytest.mark.parametrize("said", [None, "", "[]", "5", '{"pid": 1}', '{"pid": "x", "gateway": "http://127.0.0.1:1"}', "dead"])
def test_else_the_usual_one(data: Path, said: str | None) -> None:
    """Where none runs on it: nothing is said, nonsense is, or its process has ended without taking its word back."""
    if said == "dead":
        said = json.dumps({"pid": ended_pid(), "gateway": "http://127.0.0.1:1"})
    if said is not None:
        (data / "run.json").write_text(said)
    assert connect(None, None, data).url == DEFAULT_URL


def test_without_a_key_it_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="TOLLWAY_KEY"):
        connect(None, None, tmp_path)
