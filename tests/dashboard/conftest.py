"""Ledgers to look at: none yet, empty, one call, five thousand entries."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from playwright.sync_api import Browser

from dashboard import data
from gateway.ledger.reports import Reports, connect
from tests.dashboard.browser import chromium, chromium_path
from tests.ledger.generate import entries, entry, write


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No answer of another test's ledger."""
    st.cache_data.clear()
    st.cache_resource.clear()
    yield
    st.cache_data.clear()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed before tests of other modules, whose loops are asyncio's own."""
    if chromium_path() is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium: apt-get install -y --no-install-recommends chromium")
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def busy_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("busy") / "ledger.db", entries(5_000, time.time_ns() // 1_000))


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], Reports]:
    """Points the dashboard at a ledger by name and gives reports on the same one, to compare with."""

    def point(which: str) -> Reports:
        if which == "busy":
            url = request.getfixturevalue("busy_url")
        elif which == "missing":
            url = f"sqlite:///{tmp_path}/ledger.db"
        else:
            now = data.now_us()
            some = {"empty": [], "one": [entry(at_us=now - 1_000_000)]}[which]
            url = write(tmp_path / "ledger.db", some)
        monkeypatch.setenv("TOLLWAY_DATABASE_URL", url)
        return connect(url)

    return point
