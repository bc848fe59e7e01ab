"""How the dashboard is started: the command line with every safe setting, and its environment. Does not import streamlit.

    python -m dashboard.run --port 8501

Streamlit by default binds all interfaces, watches files, phones home and shows stack traces; here it does none of that.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
ENTRY = Path(__file__).parent / "entry" / "tollway.py"
Login = Literal["keys", "off"]

SETTINGS: Mapping[str, str] = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.showEmailPrompt": "false",
    "server.maxUploadSize": "1",
    "server.enableXsrfProtection": "true",
    "server.enableCORS": "true",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "client.disableDataExport": "true",     # our own CSV download escapes formulas, the built-in one does not
    "runner.magicEnabled": "false",
    "theme.baseRadius": "0.4rem",
    "theme.light.primaryColor": "#0b6e75",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f3f6f8",
    "theme.light.textColor": "#1b2733",
    "theme.light.sidebar.backgroundColor": "#f3f6f8",
    "theme.light.sidebar.secondaryBackgroundColor": "#ffffff",
    "theme.dark.primaryColor": "#43b5c0",
    "theme.dark.backgroundColor": "#10161c",
    "theme.dark.secondaryBackgroundColor": "#1a232c",
    "theme.dark.textColor": "#e4eaf0",
    "theme.dark.sidebar.backgroundColor": "#1a232c",
    "theme.dark.sidebar.secondaryBackgroundColor": "#10161c",
}


def command(port: int, address: str = "127.0.0.1") -> list[str]:
    """The whole command line. The database's URL may hold a password and is therefore not on it: see `environment`."""
    settings = {"server.port": str(port), "server.address": address, "browser.serverAddress": address, **SETTINGS}
    if secrets := os.environ.get("TOLLWAY_DASHBOARD_SECRETS"):
        settings["secrets.files"] = secrets
    flags = [flag for name, value in settings.items() for flag in (f"--{name}", value)]
    return [sys.executable, "-m", "streamlit", "run", str(ENTRY), *flags]


def environment(
    database_url: str, login: Login = "keys", pepper_file: Path | None = None, gateway_url: str | None = None
) -> dict[str, str]:
    """Variables to start it with. `pepper_file`: the secret under which keys are digested, needed to check a login;
    `gateway_url` is shown where a page says how to send a first call."""
    wanted = {
        "TOLLWAY_DATABASE_URL": database_url,
        "TOLLWAY_DASHBOARD_LOGIN": login,
        "TOLLWAY_PEPPER_FILE": str(pepper_file) if pepper_file else "",
        "TOLLWAY_URL": gateway_url or "",
        "PYTHONPATH": os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part),
    }
    return {name: value for name, value in wanted.items() if value}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dashboard.run", description="The dashboard; see docs/dashboard.md.")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--address", default="127.0.0.1", help="what it listens on; off loopback a login is asked for")
    args = parser.parse_args()
    line = command(args.port, args.address)
    os.environ["PYTHONPATH"] = environment("")["PYTHONPATH"]
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
