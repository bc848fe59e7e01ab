"""Bad days in a real browser: the page says what is the matter and what to do, and goes on by itself."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from sqlalchemy import text

from dashboard import data
from dashboard.app import PAGES
from tests.dashboard.browser import Watched, dashboard
from tests.dashboard.test_login import execute
from tests.ledger.generate import entry, write
from tests.ledger.postgres import Postgres, binaries

pytestmark = pytest.mark.timeout(900)
DAY_US = 86_400_000_000


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One of its own, that survives a kill."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL: install the test extra")
    made = Postgres(found, durable=True)
    yield made
    made.stop()


def says(watched: Watched, text: str) -> None:
    watched.page.get_by_text(text).first.wait_for(timeout=120_000)


def test_a_database_goes_away_and_comes_back(browser: Browser, server: Postgres) -> None:
    """While it is away every page says so; the one that is open shows its figures again without a click."""
    write(server.url, [entry(at_us=data.now_us() - 9_000_000, cost_nanos=1_230_000_000)])
    with dashboard(server.url) as address:
        watched = Watched(browser, address)
        watched.page.goto(f"{address}/?range=24h&live=1")
        says(watched, "$1.23")
        server.kill()
        says(watched, "The database does not answer")
        for title in ("Health", "Caching", "Spend"):
            watched.page.get_by_role("link", name=title, exact=True).click()
            watched.page.get_by_role("heading", name=title, exact=True).wait_for(timeout=120_000)
            says(watched, "tries again every few seconds")
            assert watched.page.get_by_test_id("stException").count() == 0
        server.start()
        says(watched, "$1.23")
        watched.page.get_by_text("does not answer").first.wait_for(state="detached")
        watched.page.close()
    assert watched.problems == []


def test_an_older_schema_an_empty_range_and_a_filter_without_a_match(browser: Browser, tmp_path: Path) -> None:
    """Each says what to do; a team that is deleted while it is shown stays in the filter until it is taken out of it."""
    now = data.now_us()
    mine, other = entry(at_us=now - 9_000_000, cost_nanos=1_230_000_000), entry(id="b-1", call_id="c-2", team="other", at_us=now - 9_000_000)
    url = write(tmp_path / "ledger.db", [mine, other])
    with dashboard(url) as address:
        watched = Watched(browser, address)
        page = watched.page
        page.goto(f"{address}/?range=yesterday&tz=UTC&team=other")
        says(watched, "Nothing in this range for these filters")
        page.get_by_role("button", name="Show all time, all teams").click()
        says(watched, "Teams, the dearest first")
        page.goto(f"{address}/?range=24h&tz=UTC&team=other&live=1")
        says(watched, "Teams, the dearest first")
        write(tmp_path / "ledger.db", [mine])
        says(watched, "Nothing in this range for these filters")
        assert "other" in page.get_by_test_id("stSidebar").inner_text()
        execute(url, text("ALTER TABLE rollup RENAME TO rollup_of_the_future"))
        says(watched, "Starting the gateway mends it")
        execute(url, text("ALTER TABLE rollup_of_the_future RENAME TO rollup"))
        says(watched, "Nothing in this range for these filters")
        page.get_by_role("button", name="Show all time, all teams").click()
        says(watched, "$1.23")
        page.close()
    assert watched.problems == []


def test_a_clock_that_is_wrong_is_said_and_breaks_no_page(browser: Browser, tmp_path: Path) -> None:
    """Entries of the day after tomorrow and of 1970."""
    now = data.now_us()
    url = write(tmp_path / "ledger.db", [
        entry(at_us=now - 9_000_000, cost_nanos=1_230_000_000), entry(id="f-1", call_id="f", at_us=now + 2 * DAY_US),
        entry(id="p-1", call_id="p", at_us=5),
    ])  # fmt: skip
    with dashboard(url) as address:
        watched = Watched(browser, address)
        watched.page.goto(f"{address}/?range=all&tz=UTC")
        for title in PAGES:
            watched.open(title)
        watched.open("Health")
        says(watched, "a gateway's clock is wrong")
        watched.page.close()
    assert watched.problems == []
