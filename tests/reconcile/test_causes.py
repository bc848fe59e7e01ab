"""Each rule alone: one block of the bill, and the causes that are named for it."""
from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, reports
from gateway.ledger.days import day_start
from gateway.metering import prices
from gateway.reconcile import Ask, Line, Result, reconcile
from tests.ledger.generate import entry, write
from tests.reconcile.simulate import PROVIDER, price_file

DAY = date(2026, 10, 1)
ROW = f"maker:{PROVIDER}/medium@2026-01-01"
CALL = TokenUsage(uncached=10_000, cache_read=20_000, output=1_000)
"""On `medium` at 2, 0.2 and 10 dollars per million tokens: 0.020, 0.004 and 0.010."""


def booked(tokens: TokenUsage = CALL, **over: Any) -> Entry:
    fields = {
        "at_us": day_start(DAY, "UTC") + 3_600_000_000, "provider": PROVIDER, "backend": "alpha", "model": "medium", "upstream_model": "medium",
        "served_tier": "default", "tokens": tokens, "cost_nanos": 34_000_000, "uncached_cost_nanos": 70_000_000,
        "price_rows": (ROW,),
    }  # fmt: skip
    return entry(**{**fields, **over})


def bill(day: str = "2026-10-01", key: str | None = None, tier: str | None = "default", region: str | None = None, **classes: tuple[int | None, float | None]) -> list[Line]:
    """Lines by class: tokens, dollars."""
    return [
        Line(day=day, key=key, model="medium", tier=tier, region=region, kind=kind, tokens=tokens, nanos=None if usd is None else round(usd * 1e9))
        for kind, (tokens, usd) in classes.items()
    ]  # fmt: skip


def compared(folder: Path, entries: list[Entry], lines: list[Line], **ask: Any) -> Result:
    path = folder / "maker.toml"
    path.write_text(price_file())
    ledger = reports.connect(write(folder / "ledger.db", entries))
    wish = {"provider": PROVIDER, "from": DAY, "to": date(2026, 10, 2), "lines": lines, **ask}
    try:
        return reconcile(Ask(**wish), ledger, prices.load([path], built_in=False))
    finally:
        ledger.close()


AGREED = {"uncached": (10_000, 0.020), "cache_read": (20_000, 0.004), "output": (1_000, 0.010)}
ESTIMATE = booked(TokenUsage(uncached=9_000, output=500), tokens_from="estimate", status="client_gone", cost_nanos=23_000_000)


@pytest.mark.parametrize(("entries", "lines", "causes"), [
    pytest.param([booked()], bill(**AGREED), {}, id="all agrees"),
    pytest.param([booked()], bill(uncached=(10_000, 0.0200004), cache_read=(20_000, 0.004), output=(1_000, 0.010)), {"rounding": 400}, id="rounding"),
    pytest.param([booked()], bill(uncached=(10_000, 0.025), cache_read=(20_000, 0.004), output=(1_000, 0.010)), {"price_row": 5_000_000}, id="one class dearer"),
    pytest.param([booked()], bill(tier=None, uncached=(10_000, 0.022), cache_read=(20_000, 0.0044), output=(1_000, 0.011)), {"region": 3_400_000}, id="ten percent dearer, as the surcharge of a region"),
    pytest.param([booked()], bill(tier=None, uncached=(10_000, 0.040), cache_read=(20_000, 0.008), output=(1_000, 0.020)), {"tier": 34_000_000}, id="at the rates of priority, in a bill without tiers"),
    pytest.param([booked()], bill(tier=None, uncached=(10_000, 0.010), cache_read=(20_000, 0.002), output=(1_000, 0.005)), {"batch": -17_000_000}, id="at the rates of batch, in a bill without tiers"),
    pytest.param([booked()], bill("2026-10-01", None, "priority", uncached=(10_000, 0.040), cache_read=(20_000, 0.008), output=(1_000, 0.020)), {"tier": 34_000_000}, id="another tier"),
    pytest.param([booked()], bill("2026-10-01", None, "batch", uncached=(10_000, 0.010), cache_read=(20_000, 0.002), output=(1_000, 0.005)), {"batch": -17_000_000}, id="batch"),
    pytest.param([booked()], bill(region="us", uncached=(10_000, 0.022), cache_read=(20_000, 0.0044), output=(1_000, 0.011)), {"region": 3_400_000}, id="another region"),
    pytest.param([booked(), booked(TokenUsage(uncached=0, output=1_000, cache_write={"5m": 4_000}), id="a-2", cost_nanos=20_000_000)],
                 [*bill(uncached=(10_000, 0.020), cache_read=(20_000, 0.004), output=(2_000, 0.020)), *bill(write_1h=(4_000, 0.016))], {"ttl_split": 6_000_000}, id="hour instead of five minutes"),
    pytest.param([ESTIMATE], bill(uncached=(1_500, 0.003), cache_read=(8_000, 0.0016), output=(900, 0.009)), {"cut_stream": -9_400_000}, id="what was estimated"),
    pytest.param([booked()], bill(uncached=(30_000, 0.060), cache_read=(20_000, 0.004), output=(2_000, 0.020)), {"bypassed": 50_000_000}, id="more calls than were booked"),
    pytest.param([], bill(**AGREED), {"bypassed": 34_000_000}, id="nothing booked at all"),
    pytest.param([booked()], bill("2026-10-02", None, "default", **AGREED), {"day": 0}, id="billed on the next day"),
    pytest.param([booked(), booked(id="a-2")], bill(**AGREED), {"unknown": -34_000_000}, id="booked and never billed"),
    pytest.param([booked()], bill(uncached=(10_000, 0.020), cache_read=(20_000, 0.004), output=(3_000, 0.030)), {"unknown": 20_000_000}, id="output alone"),
    pytest.param([booked(cost_nanos=None, price_rows=())], bill(**AGREED), {"price_row": 34_000_000}, id="booked without a price"),
    pytest.param([booked()], [*bill(**AGREED), *bill(other=(None, 0.010))], {"unknown": 10_000_000}, id="a fee that the ledger does not know"),
])  # fmt: skip
def test_a_gap_gets_its_cause(entries: list[Entry], lines: list[Line], causes: dict[str, int], tmp_path: Path) -> None:
    """One cause each, with all of its dollars; with `unknown` the comparison fails."""
    result = compared(tmp_path, entries, lines)
    found: dict[str, int] = {}
    for each in result.findings:
        found[each.cause] = found.get(each.cause, 0) + (each.nanos or 0)
    assert found == causes
    assert result.good is ("unknown" not in causes)
    assert sum(found.values()) == result.billed_nanos - result.booked_nanos


def test_keys_that_are_no_backends_bypass_the_gateway(tmp_path: Path) -> None:
    """With keys mapped, another key's lines are not ours; without, they are more of the same."""
    lines = [*bill(key="key_a", **AGREED), *bill(key="key_z", **AGREED)]
    mapped = compared(tmp_path, [booked()], lines, keys={"key_a": "alpha"})
    assert {found.note for found in mapped.findings} == {"a key of no backend"}
    assert {found.cause for found in compared(tmp_path, [booked()], lines).findings} == {"bypassed"}


def test_corrections_count_for_the_attempt_that_they_correct(tmp_path: Path) -> None:
    """A re-rated attempt stands at its new cost under its new row."""
    old = booked(cost_nanos=17_000_000, price_rows=(f"{ROW}#flex",))
    correction = booked(TokenUsage(), id="a-1~r000-0", kind="correction", corrects="a-1", cost_nanos=17_000_000)
    assert not compared(tmp_path, [old, correction], bill(**AGREED)).findings


def test_a_model_that_no_row_prices_counts_by_tokens(tmp_path: Path) -> None:
    """Unknown dollars do not hide unknown tokens."""
    lines = [line.model_copy(update={"model": "nobody-knows", "kind": "output", "nanos": None}) for line in bill(output=(500, None))]
    result = compared(tmp_path, [], lines)
    assert (result.findings[0].nanos, result.residual, result.good) == (None, 1.0, False)


def test_rows_that_are_gone_part_the_cost_as_todays_would(tmp_path: Path) -> None:
    """Row ids of the past are no reason to see gaps."""
    assert not compared(tmp_path, [booked(price_rows=("contract-2025:maker/medium@2025-01-01",))], bill(**AGREED)).findings


def test_fees_are_nothing_that_a_usage_report_could_show(tmp_path: Path) -> None:
    """A search that we booked is no gap to a file of tokens, and is one to a bill with dollars."""
    searched = booked(cost_nanos=44_000_000)
    tokens = {kind: (count, None) for kind, (count, _) in AGREED.items()}
    assert not compared(tmp_path, [searched], bill(**tokens)).findings
    assert [found.cause for found in compared(tmp_path, [searched], bill(**AGREED)).findings] == ["unknown"]
