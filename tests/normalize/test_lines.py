"""What a text says is found out once, and remembered within bounds."""
from __future__ import annotations

import pytest

from gateway.core.patterns import described
from gateway.normalize import lines
from gateway.normalize.lines import Lines


def test_a_text_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, asked = Lines(), list[int]()
    monkeypatch.setattr(lines, "described", lambda some: asked.append(len(some)) or described(some))
    text = ["Be brief.\n", "Current time: 10:05\n"]
    assert known.look("team", text) == known.look("team", list(text)) == described(text)
    assert known.look("team", [*text, "More."]) != known.look("team", text)
    assert asked == [2, 3]
    assert known.look("other", text) == described(text)
    assert asked == [2, 3, 2], "what one team sent would answer another sooner"


def test_the_oldest_goes_first() -> None:
    known = Lines(most=10)
    for n in range(9):
        known.look("team", [f"{n}\n"] * 3)
    assert len(known) == 9
    assert len(known.look("team", ["long\n"] * 50).names) == 50
    assert len(known) == 50
