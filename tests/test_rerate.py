"""Re-rating: what is corrected, that nothing is corrected twice, and the road through a running gateway."""
from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, reports
from gateway.ledger.reports import Slice
from gateway.metering import prices
from gateway.rerate import Rerating, Tally, region_of
from tests.build import PLAIN, PRICES, Gateway, backend, chat_answer, chat_body, command
from tests.ledger.generate import entry, write
from tests.upstream import Upstream, whole

ROWS = """
[maker]
regions = [{region = "*", models = ["m"], factor = "1.1"}]
rows = [
  {model = "m", input = "2", cached = "0.5", output = "10"},
  {model = "m", tier = "batch", input = "1", cached = "0.25", output = "5"},
  {model = "m", valid_from = 2025-11-25, input = "1", cached = "0.25", output = "5"},
]
"""
AT = 1_764_000_000_000_000      # 2025-11-24
USAGE = TokenUsage(uncached=1_000, cache_read=2_000, output=100)
PRICE, AFRESH = 4_000_000, 7_000_000
"""Nano-dollars of that usage by the first row: with the cache, and had there been none."""


class Book:
    """A ledger in memory that re-rating can read and append to."""

    def __init__(self, *entries: Entry) -> None:
        self.all = list(entries)

    def entries(self, part: Slice, limit: int, after: tuple[int, str]) -> list[Entry]:
        return sorted((e for e in self.all if (e.at_us, e.id) > after), key=lambda e: (e.at_us, e.id))[:limit]

    def corrections(self, ids: list[str]) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for one in sorted(self.all, key=lambda e: e.id):
            if one.corrects in ids:
                found.setdefault(one.corrects, []).append(one)
        return found

    async def append(self, entry: Entry) -> None:
        if entry.id not in {e.id for e in self.all}:
            self.all.append(entry)


async def run(ledger: Book, folder: Path, rows: str = ROWS, **over: Any) -> Tally:
    path = folder / "own.toml"
    path.write_text(rows)
    job = Rerating(reports=ledger, ledger=ledger, book=prices.load([path], built_in=False), **{"regions": {}, **over})  # type: ignore[arg-type]
    return [tally async for tally in job.run(Slice())][-1]


def attempt(**over: Any) -> Entry:
    fields = {"at_us": AT, "provider": "maker", "backend": "b", "model": "m", "upstream_model": "m", "tokens": USAGE}
    return entry(**{**fields, "cost_nanos": PRICE, "uncached_cost_nanos": AFRESH, "price_rows": ("own:maker/m@launch",), **over})


@pytest.mark.parametrize(("over", "cost", "afresh"), [
    pytest.param({}, None, None, id="as it was"),
    pytest.param({"cost_nanos": 5_000_000}, -1_000_000, 0, id="too dear"),
    pytest.param({"cost_nanos": None, "uncached_cost_nanos": None, "status": "unpriced", "price_rows": ()}, PRICE, AFRESH, id="unknown, and a row covers it now"),
    pytest.param({"at_us": AT + 2 * 86_400_000_000}, -2_000_000, -3_500_000, id="a new row holds at its time"),
    pytest.param({"price_rows": ("own:maker/m@launch#batch",)}, -2_000_000, -3_500_000, id="batch, as its row says"),
    pytest.param({"price_rows": ("own:maker/m@launch", "maker@region:*x11/10")}, 400_000, 700_000, id="regional, as its row says"),
    pytest.param({"served_model": "m-2026-01-01", "upstream_model": "alias"}, None, None, id="by the name that was served"),
    pytest.param({"served_tier": "flex"}, None, None, id="a tier without a row keeps its cost"),
    pytest.param({"tokens": TokenUsage(), "cost_nanos": 0, "status": "failed"}, None, None, id="nothing was used"),
    pytest.param({"uncached_cost_nanos": None}, 0, 3_000_000, id="cost without caching was not told"),
])  # fmt: skip
async def test_a_difference_is_one_correction(over: dict[str, Any], cost: int | None, afresh: int | None, tmp_path: Path) -> None:
    """The entry stays; the correction has its labels and time, no tokens, and the difference. A second run books nothing."""
    old = attempt(**over)
    ledger = Book(old)
    first = await run(ledger, tmp_path)
    assert ledger.all[0] == old
    made = ledger.all[1:]
    assert [(e.cost_nanos, e.uncached_cost_nanos) for e in made] == ([] if cost is None else [(cost, afresh)])
    assert first.changed == len(made)
    for e in made:
        assert (e.kind, e.corrects, e.tokens, e.at_us, e.call_id, e.team, e.backend) == ("correction", old.id, TokenUsage(), old.at_us, old.call_id, old.team, "b")
    again = await run(ledger, tmp_path)
    assert (again.changed, len(ledger.all)) == (0, 1 + len(made))
    assert again.before_nanos == again.after_nanos == first.after_nanos


async def test_prices_may_go_back_and_forth(tmp_path: Path) -> None:
    """Each change is a correction of its own, and the sum is always the newest price."""
    ledger = Book(attempt())
    dearer = ROWS.replace('output = "10"', 'output = "20"')
    for rows, total in ((dearer, 5_000_000), (ROWS, PRICE), (dearer, 5_000_000), (dearer, 5_000_000)):
        await run(ledger, tmp_path, rows)
        assert sum(e.cost_nanos or 0 for e in ledger.all) == total
    assert len(ledger.all) == 4
    assert sorted(e.id for e in ledger.all[1:]) == [e.id for e in ledger.all[1:]]


async def test_two_runs_at_once_book_once(tmp_path: Path) -> None:
    """Both see the same ledger, so both make the same ids."""
    one, two = Book(attempt(cost_nanos=1)), Book(attempt(cost_nanos=1))
    await run(one, tmp_path)
    await run(two, tmp_path)
    assert [e.id for e in one.all] == [e.id for e in two.all]


async def test_late_usage_is_priced_with_its_own_model(tmp_path: Path) -> None:
    """A background answer's tokens came as a correction; they are what is priced, at the time of the call."""
    first = attempt(tokens=TokenUsage(), cost_nanos=None, uncached_cost_nanos=None, upstream_model="alias", price_rows=())
    late = attempt(id="a-1-late", kind="correction", corrects="a-1", served_model="m", at_us=AT + 2 * 86_400_000_000, cost_nanos=1)
    ledger = Book(first, late)
    tally = await run(ledger, tmp_path)
    assert (tally.changed, sum(e.cost_nanos or 0 for e in ledger.all)) == (1, PRICE)


async def test_what_has_no_price_is_told_and_kept(tmp_path: Path) -> None:
    """A known cost is never replaced by nothing."""
    ledger = Book(attempt(served_tier="flex"), attempt(id="a-2", upstream_model="x", cost_nanos=None, price_rows=()))
    tally = await run(ledger, tmp_path)
    assert (tally.no_longer_priced, tally.unknown, tally.missing) == (1, 1, {"tier flex": 1, "model maker/x": 1})
    assert len(ledger.all) == 2


async def test_a_dry_run_books_nothing(tmp_path: Path) -> None:
    ledger = Book(*[attempt(id=f"a-{n}", cost_nanos=1) for n in range(1_200)])
    assert (await run(ledger, tmp_path, dry_run=True)).changed == 1_200
    assert len(ledger.all) == 1_200


@pytest.mark.parametrize(("rows", "configured", "place"), [
    ((), "eu", "eu"), (("p/m@launch",), "eu", None), (("p/m@launch#region:us#hours",), None, "us"),
    (("p/m@launch", "p@region:eux11/10"), None, "eu"), (("p/m@launch", "p@region:*x11/10"), "ap", "ap"),
])  # fmt: skip
def test_the_region_is_read_from_the_rows(rows: tuple[str, ...], configured: str | None, place: str | None) -> None:
    assert region_of(rows, configured) == place


def test_through_a_running_gateway(upstream: Upstream, tmp_path: Path) -> None:
    """A corrected price file, `tollway rerate`: the call costs anew, an audit row says who and how much, a second run changes nothing."""
    site = upstream.site("rerated")
    site.says(whole(chat_answer()))
    with Gateway(tmp_path, {"backends": {"one": backend(site)}}, {"plain": PLAIN}) as gateway:
        call_id = gateway.chat(chat_body(site.model)).headers["x-tollway-call"]
        assert gateway.call(call_id)["cost_usd"] == "0.000160000"       # 40 at 2, 60 at 0.5, 5 at 10
        (tmp_path / "prices.toml").write_text(PRICES.replace('output = "10"', 'output = "30"'))
        argv = ["rerate", "--from", "2020-01-01", "--to", "2100-01-01", "--url", gateway.url, "--key", gateway.admin_key]
        would = json.loads(command(*argv, "--dry-run", "--json")[1])
        assert (would["changed"], would["difference_usd"], would["restart"]) == (1, "0.000100000", True)
        assert gateway.call(call_id)["cost_usd"] == "0.000160000"
        status, text = command(*argv)
        assert (status, "$0.000260000" in text.replace("\n", ""), "restart the gateway" in text) == (0, True, True), text
        assert gateway.call(call_id)["cost_usd"] == "0.000260000"
        assert json.loads(command(*argv, "--json")[1])["changed"] == 0
        assert command(*argv, "--team", "other")[0] == 0
        refused = command("rerate", "--from", "2020-01-01", "--to", "2100-01-01", "--url", gateway.url, "--key", gateway.key())
        assert refused[0] == 1
        assert "admin" in refused[1]
    with sqlite3.connect(tmp_path / "data" / "tollway.db") as database:
        kept = database.execute("SELECT actor, detail FROM audit WHERE action = 'ledger.rerate' ORDER BY at_us").fetchall()
    database.close()
    assert [json.loads(detail)["changed"] for _, detail in kept] == [1, 0, 0]
    assert kept[0][0].startswith(gateway_key_id(tmp_path))


def gateway_key_id(folder: Path) -> str:
    """The admin key's id, which stands in the key."""
    return (folder / "data" / "keys" / "admin").read_text().split("_")[1]


@pytest.mark.parametrize(("argv", "says"), [
    (["--from", "2026-11-31", "--to", "2026-12-01"], "is no day"), (["--from", "2026-12-02", "--to", "2026-12-01"], "lies before"), ([], "--from"),
])  # fmt: skip
def test_wrong_use_is_told(argv: list[str], says: str) -> None:
    status, text = command("rerate", *argv, "--key", "k")
    assert (status, says in text) == (2, True), text


def test_the_sql_ledger_gives_corrections_by_attempt(tmp_path: Path) -> None:
    """What re-rating reads: in order of their ids, attempts without any left out."""
    some = [attempt(), attempt(id="a-2"), *(attempt(id=f"a-1~r{n:03d}-x", kind="correction", corrects="a-1") for n in (1, 0))]
    ledger = reports.connect(write(tmp_path / "l.db", some))
    found = ledger.corrections(["a-1", "a-2"])
    ledger.close()
    assert {key: [e.id for e in several] for key, several in found.items()} == {"a-1": ["a-1~r000-x", "a-1~r001-x"]}
