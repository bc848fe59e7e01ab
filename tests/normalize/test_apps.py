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


RULES = ["You help.\n", "Be kind.\n", "\n"]


def talk(app: App, *last: str) -> list[list[bool]]:
    """One conversation whose prompt ends with another line in each turn; which lines of each turn are volatile."""
    found, slots = volatile(app, [*RULES, last[0]], None)
    return [found, *[volatile(app, [*RULES, line], slots)[0] for line in last[1:]]]


def test_a_line_that_changes_within_conversations_is_volatile_in_the_next_one() -> None:
    """Whatever it says; the conversation in which it was learnt goes on as it began."""
    app = App()
    assert talk(app, "Be brief.", "Think first.", "Hurry up.", "Be careful.") == [[False] * 4] * 4
    assert talk(app, "Take a break.", "Go on.") == [[False, False, False, True]] * 2


def test_a_line_that_differs_between_conversations_only_is_not() -> None:
    app = App()
    for name in ("Ann", "Bob", "Cid", "Dan", "Eve"):
        assert talk(app, f"Your user is {name}.", f"Your user is {name}.") == [[False] * 4] * 2


def test_a_prompt_that_grows_is_not() -> None:
    app = App()
    for n in range(3):
        lines = [*RULES, f"Note of {'abc'[n]}.\n"]
        _, slots = volatile(app, lines, None)
        for word in ("one", "two", "three", "four", "five"):
            lines = [*lines, f"Also {word} {'xyz'[n]}.\n"]
            assert not any(volatile(app, lines, slots)[0])
