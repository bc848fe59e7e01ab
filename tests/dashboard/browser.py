"""A running dashboard and a Chromium to look at it with."""
from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from dashboard import run
from tests.ports import hold_port

CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


PATIENCE_MS = 120_000
"""How long a test waits for what must appear: no busy machine reaches it."""


class Watched:
    """A browser page and what went wrong on it."""

    def __init__(self, browser: Browser, address: str, width: int = 1280) -> None:
        self.address, self.problems = address, list[str]()
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, self.address.replace("http", "ws", 1), "data:", "blob:")):
            self.problems.append(f"asked {url}")

    def open(self, title: str) -> None:
        """By the navigation; drawn, and without an exception."""
        self.page.get_by_role("link", name=title, exact=True).click()
        self.page.get_by_role("heading", name=title, exact=True).wait_for()
        self.settle()
        assert self.page.get_by_test_id("stException").count() == 0, title

    def settle(self) -> None:
        settle(self.page)

    def main(self) -> str:
        return self.page.get_by_test_id("stMain").inner_text()

    def figure(self, label: str) -> str:
        """The value in the box of that name."""
        box = self.page.get_by_test_id("stMetric").filter(has_text=label).first
        return box.get_by_test_id("stMetricValue").inner_text()


def settle(page: Page) -> None:
    """Waits until the script has run and nothing of the run before it, nor a place-holder, is left on the page."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=PATIENCE_MS)
    page.wait_for_function("() => !document.querySelector('[data-stale=true], [data-testid=stSkeleton]')", timeout=PATIENCE_MS)
    page.wait_for_timeout(300)


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def dashboard(database_url: str, login: run.Login = "off", pepper_file: Path | None = None) -> Iterator[str]:
    """Its address, once it answers. Nothing of it is left afterwards."""
    held = hold_port()
    port = int(held.getsockname()[1])
    env = {**os.environ, **run.environment(database_url, login, pepper_file)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(run.command(port), env=env, stdout=log, stderr=log)
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(process)
            held.close()
            log.seek(0)
            print(log.read())       # shown where a test failed


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    health = f"http://127.0.0.1:{port}/_stcore/health"
    for _ in range(1_200):
        if process.poll() is not None:
            raise RuntimeError("the dashboard ended at once")
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(health, timeout=10):
            return
        time.sleep(0.1)
    raise RuntimeError("the dashboard did not answer in two minutes")
