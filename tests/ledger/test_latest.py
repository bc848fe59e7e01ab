"""The latest calls of any choice are the ones that a look at all entries finds; where too many would be looked at, it says so."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.ledger import Entry, latest
from gateway.ledger.days import HOUR_US
from gateway.ledger.reports import Reports, Slice, connect
from tests.ledger.generate import entries, entry, write
from tests.ledger.test_rollups import NOON, add, roll

SOME = list(entries(900, NOON, days=3))
LATE = entry(id="late", call_id="late", at_us=NOON - 50 * HOUR_US, key_id="key-rare")
CHOICES = (
    {}, {"key": "key-search-1"}, {"status": "failed"}, {"lane": "flex", "model": "gpt-5.5"}, {"team": ["research"]}, {"key": "none"},
    {"miss": "edit"}, {"tag:feature": "rerank"}, {"subgoal": "plan"}, {"run": SOME[-1].run or "?"}, {"project": None}, {"key": "key-rare"},
)  # fmt: skip


@pytest.fixture
def report(place: str) -> Iterator[Reports]:
    made = connect(write(place, SOME))
    roll(place)
    add(place, LATE)
    yield made
    made.close()


def newest(part: Slice, limit: int) -> list[str]:
    """As they were written."""
    chosen = [each for each in [*SOME, LATE] if part.since_us <= each.at_us < part.until_us and fits(each, part)]
    ordered = sorted(chosen, key=lambda each: -each.at_us)
    return list(dict.fromkeys(each.call_id for each in ordered))[:limit]


def fits(each: Entry, part: Slice) -> bool:
    of = {"key": each.key_id, "miss": (each.miss or {}).get("kind"), "tag:feature": each.tags.get("feature")}
    for name, wanted in part.where.items():
        value = of[name] if name in of else getattr(each, name)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


@pytest.mark.parametrize("limit", [3, 60])
def test_they_are_the_newest_of_all(report: Reports, limit: int) -> None:
    """Also pieces of hours, what the roll-up has not got yet, and what it cannot tell."""
    for where in CHOICES:
        for part in (Slice(where=where), Slice(where=where, since_us=NOON - 31 * HOUR_US - 9, until_us=NOON - HOUR_US // 3)):
            found, since_us = report.latest_calls(part, limit=limit)
            assert [call["id"] for call in found] == newest(part, limit), where
            assert since_us is None


def test_a_search_is_one_by_id_or_by_what_is_known(report: Reports) -> None:
    by_id = SOME[40].call_id
    assert [call["id"] for call in report.call_list(search=by_id)] == [by_id]
    assert len(report.call_list(search=by_id[:-1], limit=50)) > 1
    assert [call["id"] for call in report.call_list(search="key-search-1", limit=9)] == newest(Slice(where={"key": "key-search-1"}), 9)
    assert [call["id"] for call in report.call_list(search="key-rare")] == ["late"]
    assert report.call_list(search="nothing like it") == []


def test_a_look_ends_somewhere_and_says_where(report: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it found until there is the newest, and days before it go on from there."""
    monkeypatch.setattr(latest, "MOST_LOOKED", 100)
    part = Slice(where={"status": "failed"})
    found, since_us = report.latest_calls(part, limit=60)
    assert since_us is not None
    ids = [call["id"] for call in found]
    assert 0 < len(ids) < 60
    assert ids == newest(Slice(where={"status": "failed"}, since_us=since_us), 60)
    older, _ = report.latest_calls(Slice(where={"status": "failed"}, until_us=since_us), limit=60)
    assert older
    assert not set(ids) & {call["id"] for call in older}
