"""The dashboard lines of a bad-inputs file, in a real browser: `misses` gives what is not as expected.

`given`: `session` (none, admin or a team), `query` (of the address), `team_name` and `user_agent` (of the one strange call in the ledger),
`action` (export-csv), `ws_origin` (self or an origin).
"""
from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page
from sqlalchemy import insert

from dashboard import data
from dashboard.app import PAGES
from gateway.access.keys import digest, mint
from gateway.ledger.tables import KEYS
from tests.dashboard.browser import chromium, dashboard, settle
from tests.dashboard.test_browser import upgrade
from tests.dashboard.test_login import PEPPER, execute
from tests.ledger.generate import entry, write

KNOWN = frozenset({
    "data_frames", "text_has", "body_lacks", "sink", "shown_as_text", "cell_starts_with", "or_quoted_text", "ws_status", "within_ms", "or_message",
})  # fmt: skip
_FIGURES = "[data-testid=stMetric], [data-testid=stDataFrame], [data-testid=stVegaLiteChart], [data-testid=stPlotlyChart]"
_SPREADSHEET = ("=", "+", "-", "@")


def misses(case: Mapping[str, Any], sink: str) -> Iterator[str]:
    """`sink`: an address that nothing may be fetched from."""
    given = {name: value.replace("SINK_URL", sink) if isinstance(value, str) else value for name, value in case["given"].items()}
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        url, key = _ledger(folder, given)
        with dashboard(url, "keys", folder / "pepper") as address:
            if "ws_status" in case["expect"]:
                origin = address if given["ws_origin"] == "self" else given["ws_origin"]
                status = upgrade(address, origin)
                if status not in case["expect"]["ws_status"]:
                    yield f"the websocket answered {status} to a page of {origin}"
            yield from _looked_at(browser, address, given, case["expect"], key, sink)


def _ledger(folder: Path, given: Mapping[str, Any]) -> tuple[str, str | None]:
    """A call of each of two teams, one of them strange, and a key of whoever the session is."""
    now, strange = data.now_us() - 5_000_000, {"team": given.get("team_name", "team-a"), "client": given.get("user_agent", "")}
    url = write(folder / "ledger.db", [entry(at_us=now, **strange), entry(id="b-1", call_id="c-b", at_us=now, team="team-b")])
    (folder / "pepper").write_text(PEPPER)
    if given["session"] == "none":
        return url, None
    (known, secret), admin = mint(), given["session"] == "admin"
    text = secret.reveal()
    role, team = ("admin", "operator") if admin else ("member", given["session"])
    row = {"id": known, "digest": digest(text, PEPPER.encode()), "team": team, "name": "key", "role": role, "created_us": 0}
    execute(url, insert(KEYS).values(row))
    return url, text


def _looked_at(
    browser: Browser, address: str, given: Mapping[str, Any], expect: Mapping[str, Any], key: str | None, sink: str
) -> Iterator[str]:
    page, asked = browser.new_page(accept_downloads=True), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    query = given.get("query", "range=24h")
    page.goto(f"{address}/?{query}")
    page.get_by_text("log in", exact=False).first.wait_for(timeout=120_000)
    if key is not None:
        page.get_by_role("textbox", name="Gateway key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Overview", exact=True).wait_for(timeout=120_000)
    texts = [_settled(page)]
    if key is not None:
        for title in PAGES:
            began = time.monotonic()
            page.get_by_role("link", name=title).click()
            page.get_by_role("heading", name=title, exact=True).wait_for(timeout=120_000)
            texts.append(_settled(page))
            took_ms = (time.monotonic() - began) * 1e3
            if took_ms > expect.get("within_ms", 30_000) and not (expect.get("or_message") and texts[-1].strip()):
                yield f"{title} took {took_ms:.0f} ms"
            if page.get_by_test_id("stException").count():
                yield f"{title} shows an exception"
            if given.get("action") == "export-csv" and title == "Calls":
                yield from _cells(page, given["user_agent"])
    if expect.get("data_frames") == 0 and (shown := page.locator(_FIGURES).count()):
        yield f"{shown} figures without a login"
    if "text_has" in expect and expect["text_has"].lower() not in texts[0].lower():
        yield f"the page does not say {expect['text_has']!r}"
    yield from (f"a page shows {word}" for word in expect.get("body_lacks", ()) if any(word in text for text in texts))
    if reached := [url for url in asked if url.startswith(sink)]:
        yield f"fetched {reached[0]}"
    if expect.get("shown_as_text") and not any(given["team_name"] in text for text in texts):
        yield "the name is not shown as it is written"
    page.close()


def _settled(page: Page) -> str:
    """All that the page says, tables included."""
    settle(page)
    return page.inner_text("body") + "\n".join(page.locator("[role=gridcell]").all_text_contents())


def _cells(page: Page, strange: str) -> Iterator[str]:
    with page.expect_download() as coming:
        page.get_by_role("button", name="CSV").first.click()
    with Path(coming.value.path()).open(newline="", encoding="utf-8-sig") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    found = [cell for cell in cells if strange in cell]
    if not found:
        yield "the strange cell is not in the file"
    yield from (f"a cell begins with {cell[:1]}" for cell in found if cell.startswith(_SPREADSHEET))
