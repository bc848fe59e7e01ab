"""A simulated provider with faults of every cause: how many are named rightly, and what stays unexplained."""
from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.ledger import reports
from gateway.metering.prices import PriceBook
from gateway.reconcile import Ask, Line, Result, exports, reconcile
from tests.ledger.generate import write
from tests.reconcile.simulate import DAYS, FIRST, KEYS, PROVIDER, World, anthropic_usage, book


@pytest.fixture(scope="module")
def prices_of_maker(tmp_path_factory: pytest.TempPathFactory) -> PriceBook:
    return book(tmp_path_factory.mktemp("maker"))


def compared(world: World, folder: Path, bill: list[Line] | None = None, **lines: bool) -> Result:
    ledger = reports.connect(write(folder / "ledger.db", world.entries))
    last = FIRST + timedelta(days=DAYS - 1)
    ask = Ask(**{"provider": PROVIDER, "from": FIRST, "to": last, "keys": KEYS, "unit_nanos": 1_000, "lines": bill or world.lines(**lines)})
    try:
        return reconcile(ask, ledger, world.book)
    finally:
        ledger.close()


def rightly_named(world: World, result: Result) -> tuple[int, int]:
    """Faults whose cause was named in their place with their dollars (to 2 % and a cent's hundredth), of all faults."""
    found: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for each in result.findings:
        found[each.cause, each.where.day, each.where.key, each.where.model] += each.nanos or 0
    right = sum(abs(found[place] - nanos) <= abs(nanos) * 0.02 + 100_000 and place in found for place, nanos in world.truth.faults.items())
    return right, len(world.truth.faults)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_nineteen_faults_of_twenty_are_named(seed: int, prices_of_maker: PriceBook, tmp_path: Path) -> None:
    """A month, three keys, three models, a fault in every fourth block: cause and dollars are right for 95 %, under 0.1 % is left."""
    world = World(book=prices_of_maker, seed=seed)
    result = compared(world, tmp_path)
    right, faults = rightly_named(world, result)
    assert faults > 40
    assert len({cause for cause, *_ in world.truth.faults}) == 7
    assert right / faults >= 0.95, f"{right} of {faults}"
    assert result.residual < 0.001


def test_causes_that_coincide_are_named_as_far_as_sums_can_tell(prices_of_maker: PriceBook, tmp_path: Path) -> None:
    """Two causes on one key, model and day: a bill of sums cannot always part them, but little of the money stays unexplained."""
    world = World(book=prices_of_maker, seed=100, twice=1.0)
    result = compared(world, tmp_path)
    right, faults = rightly_named(world, result)
    assert right / faults >= 0.65, f"{right} of {faults}"
    assert result.residual < 0.01


@pytest.mark.parametrize(("lines", "valued_by"), [
    pytest.param({"tokens": False}, "bill", id="dollars only"),
    pytest.param({"money": False}, "price book", id="tokens only"),
])
def test_a_bill_of_one_kind_is_enough_where_nothing_is_wrong(
    lines: dict[str, bool], valued_by: str, prices_of_maker: PriceBook, tmp_path: Path
) -> None:
    """Usage exports have no dollars, cost exports no tokens: both agree with a ledger that is right."""
    world = World(book=prices_of_maker, seed=7, rate=0.0)
    result = compared(world, tmp_path, **lines)
    assert {found.cause for found in result.findings} <= {"rounding"}
    assert (result.json()["valued_by"], result.residual) == (valued_by, 0.0)


def test_a_usage_report_names_what_moves_tokens(prices_of_maker: PriceBook, tmp_path: Path) -> None:
    """The bill in Anthropic's shape, through its reader: no dollars, so no price row, all other causes valued by the price book."""
    world = World(book=prices_of_maker, seed=8)
    path = tmp_path / "usage_report.json"
    path.write_text(json.dumps(anthropic_usage(world.lines())))
    result = compared(world, tmp_path, bill=list(exports.read(path).lines))
    world.truth.faults = {place: nanos for place, nanos in world.truth.faults.items() if place[0] != "price_row"}  # type: ignore[assignment]
    right, faults = rightly_named(world, result)
    assert right / faults >= 0.95
    assert result.residual < 0.001
    assert result.json()["valued_by"] == "price book"
