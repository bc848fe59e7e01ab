"""The script that Streamlit runs has no `pages` beside it, and is the app."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard import run
from gateway.ledger.reports import Reports
from tests.dashboard.opened import metrics, whole


def test_it_stands_where_streamlit_finds_no_pages_of_its_own() -> None:
    entry = Path(run.command(1)[4])
    assert entry.is_file()
    assert not (entry.parent / "pages").exists()


def test_the_whole_app_starts_with_its_first_page(look: Callable[[str], Reports], monkeypatch: pytest.MonkeyPatch) -> None:
    """Navigation included; login off on a loopback address."""
    look("one")
    monkeypatch.setenv("TOLLWAY_DASHBOARD_LOGIN", "off")
    monkeypatch.setattr("streamlit.get_option", lambda name: "127.0.0.1" if name == "server.address" else None)
    test = whole().run()
    assert not test.exception
    assert test.header[0].value == "Overview"
    assert metrics(test)["Calls"] == "1"
