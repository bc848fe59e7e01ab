"""A million entries in a real browser: every page opens, is whole at 1280 and 390 px and for a screen reader, and says what reports say."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from playwright.sync_api import Browser

from dashboard import data
from dashboard.app import PAGES
from gateway.ledger.query import answer
from gateway.ledger.reports import Reports, connect
from tests.dashboard.browser import Watched, dashboard
from tests.ledger.many import fill

pytestmark = pytest.mark.timeout(900)
SIZE = 1_000_000
ZONE = "Europe/Berlin"
YESTERDAY = data.instant(data.now_us(), ZONE).date() - timedelta(days=1)
DAYS = {"since": f"{YESTERDAY - timedelta(days=6)}", "until": f"{YESTERDAY}", "tz": ZONE}
"""Whole days, over by now, so that a page and a report are about the same."""
ADDRESS = f"range=custom&from={DAYS['since']}&to={DAYS['until']}&tz={ZONE}"
WIDE, PHONE = 1280, 390

OUTSIDE = """() => [...document.querySelectorAll('[data-testid=stMain] :is(button, input, a, [role=img], [data-testid=stMetricValue],'
  + ' [data-testid=stDataFrame], h1, h2, h5)')]
  .filter(each => each.checkVisibility() && (each.getBoundingClientRect().right > innerWidth + 1 || each.getBoundingClientRect().left < -1))
  .map(each => each.outerHTML.slice(0, 120))"""
SCROLLS = """() => [document.documentElement, document.querySelector('[data-testid=stMain]')]
  .some(each => each.scrollWidth > each.clientWidth + 1)"""
CUT = """() => [...document.querySelectorAll('[data-testid=stMetricValue] *')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => each.textContent)"""
NAMELESS = """() => [...document.querySelectorAll('button, input, textarea, a[href], [role=img], [role=combobox], canvas')]
  .filter(each => each.checkVisibility() && !each.closest('[aria-hidden=true], [data-testid=stDataFrame]'))
  .filter(each => !(each.getAttribute('aria-label') || each.innerText || each.title || each.getAttribute('alt') || each.labels?.length
    || each.closest('[aria-label], label') || document.getElementById(each.getAttribute('aria-labelledby'))))
  .map(each => each.outerHTML.slice(0, 160))"""


@dataclass(frozen=True)
class Shown:
    watched: Watched
    report: Reports

    def printed(self, **words: str) -> dict[str, Any]:
        """As `tollway report --json` has it."""
        return answer(self.report, {**DAYS, **words})


@pytest.fixture(scope="module")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    url = fill(tmp_path_factory.mktemp("million") / "ledger.db", SIZE, lean=True)
    with dashboard(url) as address:
        watched = Watched(browser, address, WIDE)
        watched.page.goto(f"{address}/?{ADDRESS}")
        watched.settle()
        yield Shown(watched, connect(url))
        watched.page.close()


@pytest.mark.parametrize("title", PAGES)
def test_a_page_is_whole(shown: Shown, title: str) -> None:
    """Nothing lies outside or is cut off on a desk or a phone; what one can use or look at has a name; no error."""
    watched, page = shown.watched, shown.watched.page
    watched.open(title)
    for width in (WIDE, PHONE):
        page.set_viewport_size({"width": width, "height": 900})
        watched.settle()
        assert not page.evaluate(SCROLLS), width
        assert page.evaluate(OUTSIDE) == [], width
        assert page.evaluate(CUT) == [], width
    page.set_viewport_size({"width": WIDE, "height": 900})
    watched.settle()
    assert page.evaluate(NAMELESS) == []
    charts = page.get_by_test_id("stVegaLiteChart")
    assert page.get_by_role("img").count() >= charts.count()
    assert watched.problems == []


def dollars(text: str) -> Decimal:
    return Decimal(text.replace("$", "").replace(",", ""))


def cents(text: str) -> Decimal:
    return Decimal(text).quantize(Decimal("0.01"))


def test_figures_are_what_the_report_prints_and_filters_change_them(shown: Shown) -> None:
    """To the cent; a team is chosen by the keyboard alone, and stands in the address."""
    watched, page = shown.watched, shown.watched.page
    total = shown.printed()["total"]
    watched.open("Spend")
    assert dollars(watched.figure("Cost")) == cents(total["cost_usd"])
    assert dollars(watched.figure("Without caches")) == cents(total["cost_if_uncached_usd"])
    cells = page.get_by_test_id("stDataFrame").first.locator("[role=gridcell]").all_text_contents()
    for row in shown.printed(by="team")["rows"]:
        assert row["team"] in cells
        assert cents(row["cost_usd"]) == cents(cells[cells.index(row["team"]) + 3])      # after calls and attempts
    page.get_by_role("combobox", name="Teams").focus()
    page.keyboard.type("sup")
    page.get_by_role("option", name="support").wait_for()
    for key in ("Enter", "Escape"):
        page.keyboard.press(key)
    page.wait_for_url("**team=support**")
    mine = shown.printed(team="support")["total"]
    assert cents(mine["cost_usd"]) != cents(total["cost_usd"])
    page.get_by_text(f"${cents(mine['cost_usd']):,}", exact=True).first.wait_for(timeout=120_000)
    assert dollars(watched.figure("Cost")) == cents(mine["cost_usd"])
    watched.open("Caching")
    assert watched.figure("Cache share") == f"{mine['cache_share'] * 100:.1f} %"
    assert dollars(watched.figure("Saved")) == cents(mine["saved_usd"])
    page.get_by_role("combobox", name="Teams").focus()
    page.keyboard.press("Backspace")
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "team=" not in url)
    page.get_by_text(f"${cents(total['saved_usd']):,}", exact=True).first.wait_for(timeout=120_000)
    assert watched.figure("Cache share") == f"{total['cache_share'] * 100:.1f} %"


def test_who_spent_most_and_why_its_cache_missed_is_two_clicks_away(shown: Shown) -> None:
    """A newcomer's question: the first page names the team and the cause, the link leads to all of that team's causes."""
    watched, page = shown.watched, shown.watched.page
    watched.open("Overview")
    dearest = shown.printed(by="team")["rows"][0]["team"]
    assert page.get_by_test_id("stDataFrame").first.locator("[role=gridcell]").first.text_content() == dearest
    card = page.get_by_text(f"{dearest}: caches miss because of").first
    card.wait_for(timeout=120_000)
    link = page.get_by_test_id("stColumn").filter(has=card).get_by_role("link", name="More on Caching")
    link.first.click()
    page.get_by_role("heading", name="Caching", exact=True).wait_for(timeout=120_000)
    page.wait_for_url(f"**team={dearest}**")
    watched.settle()
    page.get_by_text(f"{dearest}: caches miss because of").first.wait_for(timeout=120_000)
    assert watched.problems == []
