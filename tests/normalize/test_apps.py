"""Apps are told apart by how they begin, and remembered within bounds."""
from __future__ import annotations

import pytest

from gateway.normalize import apps
from gateway.normalize.apps import App, Apps, volatile


def test_an_app_is_known_by_its_beginning() -> None:
    """Numbers in it aside; never across domains or models."""
    known = Apps()
    app = known.app("t", "m", "Build 17 of the helper.\nrest")
    assert known.app("t", "m", "Build 18 of the helper.\nother") is app
    for domain, model, text in (("u", "m", "Build 17 of the helper."), ("t", "n", "Build 17 of the helper."), ("t", "m", "Another")):
        assert known.app(domain, model, text) is not app


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MAX_APPS", "_MAX_LINES", "_MAX_SKELETONS"):
        monkeypatch.setattr(apps, name, 10)
    known, app = Apps(), App()
    for n in range(50):
        known.app("t", "m", "abcdefghij"[n % 10] * n)
        volatile(app, [f"{'x' * n} line {n}\n"], None)
    assert len(known._apps) <= 10
    assert len(app.lines) <= 10
    assert len(app.values) <= 10


def test_slots_of_a_conversation_stay_as_they_were() -> None:
    app = App()
    for n in range(3):
        found, slots = volatile(app, [f"customer {n}\n"], None)
    assert found == [True]
    assert volatile(app, ["customer 9\n"], frozenset())[0] == [False]
    assert volatile(app, ["customer 9\n"], slots)[0] == [True]
