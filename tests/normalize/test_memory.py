"""Conversations are remembered where there is something to hold to, within bounds, and never across domains."""
from __future__ import annotations

import pytest

from gateway.normalize import Memory, memory
from tests.normalize.views import assistant, user, view

TOOLS = [{"name": "a"}]


def test_only_what_can_change_is_kept() -> None:
    known = Memory()
    for request, level, kept in (
        ({"messages": [user("1")]}, "equivalent", 0), ({"messages": [user("2")]}, "relocating", 1),
        ({"messages": [user("3")], "tools": TOOLS}, "lossless", 2), ({"messages": [assistant()], "tools": TOOLS}, "lossless", 3),
    ):  # fmt: skip
        known.session(view(request, level))
        assert len(known) == kept


def test_a_conversation_met_under_way_is_adopted() -> None:
    known = Memory()
    first = known.session(view({"messages": [user()], "tools": TOOLS}))
    assert not first.adopted
    assert known.session(view({"messages": [user(), assistant(), user()], "tools": TOOLS})) is first
    assert known.session(view({"messages": [user("x"), assistant(), user()], "tools": TOOLS})).adopted
    assert known.session(view({"messages": [user()], "tools": TOOLS}, domain="other")) is not first


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_SESSIONS", 5)
    monkeypatch.setattr(memory, "_MAX_PLACED", 20)
    monkeypatch.setattr(memory, "_MAX_PLACED_EACH", 10)
    known = Memory()
    for n in range(20):
        session = known.session(view({"messages": [user(str(n))]}, "relocating"))
        placed = [known.place(session, b"%d" % k, "text") for k in range(15)]
        assert placed == [True] * 10 + [False] * 5
        assert len(known) <= 5
        assert known._placed <= 20
