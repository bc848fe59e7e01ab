"""`tollway reconcile` against a running gateway whose calls were real."""
from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, command
from tests.upstream import Upstream, whole

CALLS = 3
GOOD = [("uncached", 40, 0.00008), ("cache_read", 60, 0.00003), ("output", 5, 0.00005)]
"""Of one call: tokens and dollars."""


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    site = upstream.site("billed")
    site.says(whole(chat_answer()))
    folder = tmp_path_factory.mktemp("billed")
    with Gateway(folder, {"backends": {"one": backend(site)}}, {"plain": PLAIN}) as gateway:
        for _ in range(CALLS):
            gateway.chat(chat_body(site.model))
        gateway.booked(site, CALLS)
        yield gateway


def export(folder: Path, factor: float = 1.0, more: int = 0) -> Path:
    day = time.strftime("%Y-%m-%d", time.gmtime())
    rows = [f"{day},m-served,{kind},{tokens * (CALLS + more)},{usd * (CALLS + more) * factor:.9f}" for kind, tokens, usd in GOOD]
    path = folder / "bill.csv"
    path.write_text("\n".join(["day,model,class,tokens,cost_usd", *rows]))
    return path


@pytest.mark.parametrize(("factor", "more", "causes"), [(1.0, 0, []), (1.25, 0, ["price_row"]), (1.0, 2, ["bypassed"])])
def test_a_bill_is_compared_with_what_was_booked(factor: float, more: int, causes: list[str], running: Gateway, tmp_path: Path) -> None:
    """All that differs has a name, so the command is content; dollars and tokens of both sides stand there."""
    status, text = command(
        "reconcile", "test", str(export(tmp_path, factor, more)), "--json", "--url", running.url, "--key", running.admin_key
    )
    found = json.loads(text)
    assert ([row["cause"] for row in found["causes"]], status, found["good"]) == (causes, 0, True)
    assert found["booked"] == {"tokens": 105 * CALLS, "usd": "0.000480000"}
    assert found["valued_by"] == "bill"


def test_what_nobody_can_explain_is_exit_status_one(running: Gateway, tmp_path: Path) -> None:
    """Tables for people: causes, sums, the dearest gaps, and the share that is left."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    path = tmp_path / "bill.csv"
    path.write_text(f"day,model,class,cost_usd\n{day},m-served,other,5.00\n")
    status, text = command("reconcile", "test", str(path), "--url", running.url, "--key", running.admin_key)
    assert status == 1, text
    assert "unknown" in text
    assert "more than 0.1 %" in text


@pytest.mark.parametrize(("argv", "says", "status"), [
    (["--map", "nonsense"], "is not KEY=BACKEND", 2), (["--tz", "Mars/Olympus"], "is no time zone", 2), (["--from", "yesterday"], "is no day", 2),
])  # fmt: skip
def test_wrong_use_is_told(argv: list[str], says: str, status: int, tmp_path: Path) -> None:
    found, text = command("reconcile", "test", str(export(tmp_path)), "--key", "k", *argv)
    assert (found, says in text) == (status, True), text


def test_a_file_that_is_no_export_is_told(running: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    status, text = command("reconcile", "test", str(path), "--url", running.url, "--key", running.admin_key)
    assert (status, "no column 'day'" in text) == (1, True), text


def test_only_an_admin_may_compare(running: Gateway, tmp_path: Path) -> None:
    status, text = command("reconcile", "test", str(export(tmp_path)), "--url", running.url, "--key", running.key())
    assert (status, "admin key" in text) == (1, True), text
