"""Words that are known are SQL, others are refused with those that exist."""
from __future__ import annotations

import pytest

from gateway.ledger.days import UnknownZone
from gateway.ledger.slices import BadQuery, Slice, dimensions


@pytest.mark.parametrize("word", ["", "teams", "tag:", "tag:a'b", 'tag:a"b', "tag:" + "x" * 65, "cost_nanos", "id; drop table"])
def test_what_is_no_dimension_is_refused(word: str) -> None:
    with pytest.raises(BadQuery, match="use one of: team, project"):
        dimensions([word], Slice())


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(UnknownZone):
        dimensions(["day"], Slice(tz="Mars/Olympus"))


def test_narrowing_wins_over_what_was_asked() -> None:
    """A caller scoped to a team cannot widen it again."""
    assert Slice(where={"team": "other", "lane": "fast"}).only(team="mine").where == {"team": "mine", "lane": "fast"}
