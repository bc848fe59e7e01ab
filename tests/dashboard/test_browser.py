"""In a real browser: every page opens clean, and nothing leaves this machine."""
from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from sqlalchemy import insert

from dashboard import data
from dashboard.app import PAGES
from gateway.access.keys import digest, mint
from gateway.ledger.tables import KEYS
from tests.dashboard.browser import Watched, dashboard
from tests.dashboard.test_app import OF_CALLS
from tests.dashboard.test_login import PEPPER, execute
from tests.ledger.generate import entry, write

pytestmark = pytest.mark.timeout(900)


def test_every_page_opens_clean_and_asks_nobody_else(browser: Browser, tmp_path: Path) -> None:
    """On an empty ledger, and on the same one with one call; no exception, no console error, no request but to the dashboard."""
    url = write(tmp_path / "ledger.db", [])
    with dashboard(url) as address:
        watched = Watched(browser, address)
        page = watched.page
        page.goto(f"{address}/?range=all&tz=UTC")
        for title in PAGES:
            watched.open(title)
            assert ("curl" in watched.main()) == (title in OF_CALLS)
        write(tmp_path / "ledger.db", [entry(at_us=data.now_us() - 1_000_000, cost_nanos=1_230_000_000)])
        for title in PAGES:
            watched.open(title)
            assert "range=all" in page.url
            assert "curl" not in watched.main()
        watched.open("Overview")
        assert watched.figure("Spend") == "$1.23"
        assert watched.problems == []
        # A link into a page: Streamlit's own first guess at its base path is answered 404, which the browser's console shows.
        page.goto(f"{address}/latency?range=7d&tz=Asia/Kolkata")
        page.get_by_text("days and hours of Asia/Kolkata").wait_for(timeout=120_000)
        watched.settle()
        page.close()
    assert [problem for problem in watched.problems if "404" not in problem] == []


def test_the_ledger_appears_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    """The page waits for it, says so, and shows it once it is there."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with dashboard(url) as address:
        watched = Watched(browser, address)
        watched.page.goto(address)
        watched.page.get_by_text("There is no ledger yet").wait_for(timeout=120_000)
        write(tmp_path / "ledger.db", [])
        watched.page.get_by_text("No calls yet").wait_for(timeout=120_000)
        watched.page.close()
    assert watched.problems == []


def test_nobody_sees_another_team(browser: Browser, tmp_path: Path) -> None:
    """Without a key there is no figure in the page; with a lead's key the address opens no other team's (bad inputs D01, D02, D05)."""
    url = write(tmp_path / "ledger.db", [
        entry(at_us=data.now_us() - 9_000_000, project="web", cost_nanos=1_230_000_000), entry(id="a-2", call_id="c-2", team="rivals", at_us=data.now_us() - 9_000_000),
        entry(id="a-3", call_id="c-3", project="app", at_us=data.now_us() - 9_000_000),
    ])  # fmt: skip
    (tmp_path / "pepper").write_text(PEPPER)
    secret = mint()[1].reveal()
    row = {"id": "k-lead", "digest": digest(secret, PEPPER.encode()), "team": "search", "project": "web", "name": "lead", "role": "lead", "created_us": 0}
    execute(url, insert(KEYS).values(row))
    with dashboard(url, "keys", tmp_path / "pepper") as address:
        watched = Watched(browser, address)
        page = watched.page
        page.goto(f"{address}/?range=24h&team=rivals&role=admin")
        page.get_by_text("log in", exact=False).first.wait_for(timeout=120_000)
        assert page.get_by_test_id("stMetric").count() == 0
        page.get_by_role("textbox", name="Gateway key").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("$1.23", exact=True).first.wait_for(timeout=120_000)
        for title in PAGES:
            page.get_by_role("link", name=title).click()
            page.get_by_role("heading", name=title, exact=True).wait_for(timeout=120_000)
            watched.settle()
            assert "rivals" not in page.locator("[data-testid=stMain]").inner_text()
        page.close()
        for origin, status in ((address, 101), ("http://evil.test", 403)):
            assert upgrade(address, origin) == status
    assert [problem for problem in watched.problems if "404" not in problem] == []


def upgrade(address: str, origin: str) -> int:
    """What the websocket answers to a page of that origin."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        head = "GET /_stcore/stream HTTP/1.1", f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"
        lines = [*head, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Origin: {origin}", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(64).split()[1])
