"""`python -m benchmarks.screenshots`: the dashboard on a made-up ledger, as pictures in docs/img/.

Those that the README and docs show; `--all`: all pages, light, dark and narrow.
"""
from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page

from dashboard.app import PAGES
from tests.dashboard.browser import chromium, dashboard
from tests.ledger.generate import entries, write

IMAGES = Path(__file__).parent.parent / "docs" / "img"
SHOWN = ("overview", "spend", "latency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--entries", type=int, default=5_000)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        url = write(Path(folder) / "ledger.db", entries(args.entries, time.time_ns() // 1_000))
        with dashboard(url) as address, chromium() as browser:
            for page in [title.lower() for title in PAGES] if args.all else SHOWN:
                shoot(browser, address, page, args.out / f"{page}.png")
                if not args.all:
                    continue
                shoot(browser, address, page, args.out / f"{page}-dark.png", dark=True)
                shoot(browser, address, page, args.out / f"{page}-narrow.png", width=400)


def shoot(browser: Browser, address: str, page_name: str, file: Path, width: int = 1360, dark: bool = False) -> None:
    """One page, whole, once its charts stand still."""
    context = browser.new_context(viewport={"width": width, "height": 2_400}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(f"{address}/{'' if page_name == 'overview' else page_name}?range=7d&tz=Europe/Berlin")
    page.get_by_role("heading", name=page_name.capitalize(), exact=True).wait_for()
    settled(page)
    box = page.locator("[data-testid=stMainBlockContainer]").bounding_box()
    height = max(600.0, box["height"]) if box else 1_000
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": width, "height": height})
    context.close()
    print(file)


def settled(page: Page) -> None:
    """Wait until the script has run and what it sent is drawn."""
    for _ in range(3):
        page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
        page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')")
        page.wait_for_timeout(800)


if __name__ == "__main__":
    main()
