"""Ledgers with what is rare: calls of the gateway's own, unknown costs, odd names, days of 23 and 25 hours."""
from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from dashboard import data, format
from dashboard.app import PAGES
from gateway.core.entry import Entry
from gateway.core.usage import TokenUsage
from gateway.ledger import query
from gateway.ledger.reports import Reports, connect
from tests.dashboard.opened import ZONE, metrics, page
from tests.ledger.generate import entry, write

HOUR_US = 3_600_000_000
NAMES = ("<b>x</b>", "a|b*c_d`e$1$f", "=1+1", "\u202eevil", "\U0001f600" * 40, "x" * 300, "null", "None", " ", "a,b=c", "%00", "100%", "../..", "\u00e9\u0301")
NOTHING = TokenUsage()


def odd(at_us: int) -> Iterator[Entry]:
    """An hour apart, the latest at `at_us`."""
    for n, name in enumerate(NAMES):
        same = {"call_id": f"c-{n}", "team": name[:64], "model": name, "upstream_model": name, "backend": name, "lane": name, "client": name, "tags": {name: name}, "run": name, "project": name}
        yield entry(id=f"a-{n}", at_us=at_us - n * HOUR_US, **same)
        yield entry(id=f"u-{n}", at_us=at_us - n * HOUR_US, **{**same, "call_id": f"u-{n}"}, cost_nanos=None, uncached_cost_nanos=None, price_rows=(), tokens=NOTHING, tokens_from="estimate", status="cut")
    for n, name in enumerate(("keep_warm", "pre_warm")):
        for cost in (None, 1_000 + n):
            tokens = TokenUsage(uncached=0, cache_read=9_000, output=0)
            yield entry(
                id=f"w-{name}-{cost}", call_id=f"w-{name}-{cost}", at_us=at_us, client=name, tags={"tollway": name}, latency_class=name, tokens=tokens,
                key_id=name, cost_nanos=cost, uncached_cost_nanos=cost, first_token_ms=None, stream=False,
            )  # fmt: skip


@pytest.fixture(params=["2026-03-29T23:30", "2026-10-25T02:30"])
def report(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reports:
    """The ledger in Berlin, late on a day of 23 hours and in the hour that comes twice."""
    at_us = data.micros(datetime.fromisoformat(request.param).replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC))
    monkeypatch.setattr(data, "now_us", lambda: at_us + 1_000_000)
    url = write(tmp_path / "ledger.db", list(odd(at_us)))
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", url)
    return connect(url)


@pytest.mark.parametrize("title", PAGES)
def test_every_page_opens(report: Reports, title: str) -> None:
    """All time, and the day with an hour more or less."""
    for range_ in ("all", "today"):
        page(title, range=range_)


def test_sums_are_those_of_the_report(report: Reports) -> None:
    """What the gateway did on its own account stands in them, and what has no price is told."""
    shown, total = metrics(page("Overview")), report.spend().total
    said = query.answer(report, {"report": "spend", "by": "client,day", "tz": ZONE})
    assert shown["Spend"] == format.usd(total.cost_nanos)
    assert shown["Calls"] == format.count(total.calls) == format.count(2 * len(NAMES) + 4)
    assert total.unpriced == len(NAMES) + 2 == sum(row["unpriced"] for row in said["rows"])
    assert sum(row["calls"] for row in said["rows"]) == total.calls
    assert {"keep_warm", "pre_warm"} <= {row["client"] for row in said["rows"]}
    assert f"{total.unpriced:,} of {total.attempts:,} attempts" in page("Overview").warning[0].value
