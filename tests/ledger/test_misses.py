"""The list of what to mend first: misses by cause, priced, with the change to make."""
from __future__ import annotations

from typing import Any

from gateway.ledger.misses import ADVICE, causes

HOUR = 3_600_000_000


def row(kind: str, path: str, nanos: int | None, calls: int = 1, client: str = "app/1") -> dict[str, Any]:
    return {
        "miss_kind": kind, "miss_path": path, "team": "t", "client": client, "model": "m", "calls": calls, "lost": 100 * calls,
        "nanos": nanos, "example": path,
    }  # fmt: skip


def test_messages_are_one_place_and_the_dearest_comes_first() -> None:
    rows = [row("timestamp", "/messages/0/content", 5, 2), row("history_edit", "/messages/3/content", 40), row("history_edit", "/messages/7/content", 50),
            row("timestamp", "/messages/0/content", None, client="other")]  # fmt: skip
    found = causes(rows)
    assert [(one.kind, one.path, one.calls, one.lost_nanos) for one in found] == [
        ("history_edit", "/messages/*/content", 2, 90), ("timestamp", "/messages/*/content", 2, 5), ("timestamp", "/messages/*/content", 1, None),
    ]  # fmt: skip
    assert found[0].example == "/messages/7/content"


def test_dollars_a_month_and_advice() -> None:
    (one,) = causes([row("tool_order", "/tools/3", 1_000_000_000)])
    told = one.json(30 * 24 * HOUR // 2)
    assert (told["lost_usd"], told["usd_a_month"]) == ("1.000000000", "2.000000000")
    assert told["advice"] == ADVICE["tool_order"]
    assert one.json(0)["usd_a_month"] is None
