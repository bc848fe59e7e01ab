"""The command line holds every safe setting and no secret."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dashboard import run


def test_the_command_is_safe() -> None:
    command = run.command(8501, "127.0.0.1")
    flags = dict(zip(command[5::2], command[6::2], strict=True))
    assert command[1:4] == ["-m", "streamlit", "run"]
    assert Path(command[4]).is_file()
    assert (flags["--server.port"], flags["--server.address"]) == ("8501", "127.0.0.1")
    for name, value in (
        ("browser.gatherUsageStats", "false"), ("server.fileWatcherType", "none"), ("client.toolbarMode", "minimal"),
        ("client.showErrorDetails", "none"), ("server.headless", "true"), ("runner.magicEnabled", "false"),
    ):  # fmt: skip
        assert flags[f"--{name}"] == value
    assert "secret" not in " ".join(command)


def test_login_is_on_unless_told_otherwise() -> None:
    assert run.environment("sqlite:///x")["TOLLWAY_DASHBOARD_LOGIN"] == "keys"
    assert "TOLLWAY_PEPPER_FILE" not in run.environment("sqlite:///x")
    assert run.environment("sqlite:///x", pepper_file=Path("/p"))["TOLLWAY_PEPPER_FILE"] == "/p"


def test_starting_it_does_not_load_streamlit() -> None:
    """`tollway up` imports this module."""
    code = "import sys, dashboard.run; sys.exit('streamlit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=run.ROOT, check=False).returncode == 0
