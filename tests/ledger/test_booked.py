"""What is booked on attempts, with their corrections."""
from __future__ import annotations

from gateway.core.money import nanos
from gateway.ledger.reports import Slice, connect
from tests.ledger.generate import entry, write
from tests.ledger.test_reports import NOON, at, seed


def test_what_a_budget_spent_is_the_sum_of_its_window(place: str) -> None:
    """Without attempts that are still to be booked elsewhere, and without their corrections."""
    report = connect(write(place, [
        *seed(("2026-02-28T12:00:00+00:00", "1"), ("2026-03-01T04:30:00+00:00", "2"), ("2026-03-10T12:00:00+00:00", "4")),
        entry(id="c", corrects="a-2", kind="correction", at_us=at("2026-03-10T12:00:00+00:00"), team="alpha", cost_nanos=5),
    ]))  # fmt: skip
    march = Slice(since_us=at("2026-03-01T00:00:00+00:00"), where={"team": "alpha"})
    assert report.spent(march) == nanos("6") + 5
    assert report.spent(march.only(key="other")) == 0
    ids = [row.id for row in report.entries()]
    without = next(id for id in ids if id != "c" and report.costs([id])[id] == nanos("2"))
    assert report.spent(march, [without, *(f"x{n}" for n in range(1_000))]) == nanos("4") + 5
    each = report.spent_each(march)
    assert (sum(each.values()), each["a-2"]) == (nanos("6") + 5, nanos("4") + 5)
    assert report.costs([*ids, "unheard-of"]).keys() >= {without}
    assert "unheard-of" not in report.costs(["unheard-of"])
    assert [entry.id for entry in report.corrections(["a-2", "a-1"])["a-2"]] == ["c"]
    assert (list(report.corrections(["a-2", "a-1"])), report.corrections([])) == (["a-2"], {})
    report.close()


def test_what_an_attempt_cost_is_with_its_corrections(place: str) -> None:
    """Not known and then known is known."""
    report = connect(write(place, [
        entry(id="a", cost_nanos=None), entry(id="a-late", kind="correction", corrects="a", cost_nanos=7),
        entry(id="b", call_id="c-2", cost_nanos=None), entry(id="d", call_id="c-3", cost_nanos=9),
    ]))  # fmt: skip
    assert report.costs(["a", "b", "d", "e"]) == {"a": 7, "b": None, "d": 9}
    report.close()


def test_budgets_count_what_was_held_until_a_cost_is_known(place: str) -> None:
    """Unknown is not free, also after a restart; the correction that tells the cost takes its place, whenever it was booked."""
    unknown = {"cost_nanos": None, "uncached_cost_nanos": None, "held_nanos": 100}
    entries = [
        entry(id="a", **unknown), entry(id="b", call_id="c-2", **unknown),
        entry(id="b-late", call_id="c-2", kind="correction", corrects="b", cost_nanos=7, held_nanos=100, at_us=NOON + 50),
        entry(id="c", call_id="c-3", cost_nanos=9), entry(id="d", call_id="c-4", cost_nanos=None, uncached_cost_nanos=None),
    ]
    report = connect(write(place, entries))
    assert report.spent(Slice()) == 116
    assert report.spent(Slice(until_us=NOON + 50)) == 109
    assert report.spent(Slice(), ["a"]) == 16
    assert report.spent_each(Slice()) == {"a": 100, "b": 7, "c": 9}
    assert report.spend().total.cost_nanos == 16            # a report shows what is known
    report.close()
