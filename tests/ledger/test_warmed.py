"""What the gateway's own calls cost, and which of them another call has read in time."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.ledger.reports import Reports, Slice
from tests.ledger.generate import entry

NOON, MINUTE = 1_764_072_000_000_000, 60_000_000
Ledger = Callable[..., Reports]


def call(minute: int, client: str = "app", read: int = 0, written: int = 0, **fields: Any) -> Entry:
    tokens = TokenUsage(uncached=10, cache_read=read, cache_write={"5m": written}, output=0)
    said = {"team": "t", "session": "s", "backend": "b", "upstream_model": "m", "status": "ok", "cost_nanos": 100, "uncached_cost_nanos": 1_000 + read, **fields}
    return entry(id=f"{client}-{minute}-{read}", call_id=f"{client}-{minute}-{read}", client=client, at_us=NOON + minute * MINUTE, tokens=tokens, **said)


def test_a_call_was_of_use_if_another_read_as_much_within_the_hour(ledger: Ledger) -> None:
    """The first one's saving is what it is credited with."""
    report = ledger(
        call(0, "pre_warm", written=5_000, cost_nanos=300), call(1, read=100), call(5, read=5_200, session="x"), call(6, read=5_300),
        call(200, "pre_warm", written=5_000, cost_nanos=300), call(261, read=5_000),
    )  # fmt: skip
    [found] = report.warmed()
    assert found.json() == {
        "kind": "pre_warm", "calls": 2, "cost_usd": "0.000000600", "looked": 2, "of_use": 1, "saved_usd": "0.000006100",
    }  # fmt: skip


@pytest.mark.parametrize("other", [
    pytest.param({"team": "u"}, id="another team"), pytest.param({"backend": "c"}, id="another backend"),
    pytest.param({"upstream_model": "n"}, id="another model"), pytest.param({"cost_nanos": None}, id="of unknown cost"),
    pytest.param({"client": "keep_warm"}, id="a call of the gateway's own"),
])  # fmt: skip
def test_who_read_something_else_does_not_count(ledger: Ledger, other: dict[str, Any]) -> None:
    report = ledger(call(0, "pre_warm", written=5_000), call(1, read=5_000, **other))
    assert [(one.kind, one.use) for one in report.warmed() if one.kind == "pre_warm"] == [("pre_warm", 0)]


def test_what_kept_a_conversation_is_of_use_to_that_conversation(ledger: Ledger) -> None:
    """Of two in a row the last one is followed by a turn, but the first has kept it for both: one saving."""
    report = ledger(
        call(0, "keep_warm", read=5_000), call(4, "keep_warm", read=5_000), call(6, read=5_000, session="another"), call(7, read=5_000),
        call(20, "keep_warm", read=7_000, session="z"),
    )  # fmt: skip
    assert [(one.kind, one.calls, one.use, one.saved) for one in report.warmed()] == [("keep_warm", 3, 2, 5_900)]


def test_where_there_are_none_there_is_nothing_to_say(ledger: Ledger) -> None:
    report = ledger(call(0), call(1))
    assert report.warmed() == []
    assert report.warmed(Slice(where={"client": "app"})) == []
