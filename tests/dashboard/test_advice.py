"""Advice is worth what the sums say, and is only given where there is something to mend."""
from __future__ import annotations

from dashboard import advice
from dashboard.data import Cause, Row
from gateway.ledger.misses import ADVICE, WORDS


def test_the_dearest_comes_first_by_the_month() -> None:
    missed = Row(key=("search", "m"), attempts=10, uncached=1_000, cache_read=1_000, uncached_nanos=10_000, cache_read_nanos=1_000,
                 predicted_read=5_000, expected_read=1_000, expected=10, missed=8, cost_nanos=11_000, uncached_cost_nanos=20_000)  # fmt: skip
    wasted = Row(key=("support", "m"), attempts=5, cache_write=900, cost_nanos=100_000, uncached_cost_nanos=40_000)
    found = advice.found([missed, wasted], [Row(key=("new",), attempts=9, unpriced=3)], 2.0)
    assert [(one.title.partition(":")[0], one.monthly_nanos) for one in found] == [("support", 120_000), ("search", 72_000), ("new", None)]


def test_a_team_that_does_well_is_left_in_peace() -> None:
    good = Row(key=("search", "m"), attempts=100, retries=1, uncached=10, cache_read=900, predicted_read=900, expected_read=900,
               expected=90, uncached_nanos=10, cache_read_nanos=9, cost_nanos=99, uncached_cost_nanos=900)  # fmt: skip
    assert advice.found([good], [good], 1.0) == []


def test_causes_of_a_team_are_one_advice_a_kind_and_stand_for_its_sums() -> None:
    """Of two places the dearer one is named; what is shorter than a cache takes costs nothing and is none."""

    def cause(team: str, kind: str, path: str, nanos: int | None) -> Cause:
        return Cause(kind=kind, path=path, team=team, client="curl", model="m", calls=3, lost_tokens=9, lost_nanos=nanos, example="c-1")

    known = advice.causes(
        [cause("search", "id", "/system/0", 500), cause("search", "id", "/tools/1", 100), cause("b", "expiry", "", None), cause("b", "below_minimum", "", 9)],
        2.0,
    )  # fmt: skip
    assert [(one.team, one.monthly_nanos) for one in known] == [("search", 1_200), ("b", None)]
    assert known[0].title == "search: caches miss because of an id"
    assert known[0].text.startswith("6 calls, most at /system/0 of curl with m. Leave the id out")
    missed = Row(key=("search", "m"), uncached=9, cache_read=9, uncached_nanos=90, cache_read_nanos=1, predicted_read=9, expected=1, missed=1)
    assert advice.found([missed], [], 1.0, known) == known
    assert WORDS.keys() == ADVICE.keys()
