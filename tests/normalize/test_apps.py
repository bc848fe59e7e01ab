"""Apps are told apart by how they begin, and remembered within bounds."""
from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.patterns import NAMES, described
from gateway.normalize import apps
from gateway.normalize.apps import App, Apps, Known, volatile


def test_an_app_is_known_by_its_beginning() -> None:
    """Numbers in it aside; never across domains or models."""
    known = Apps()
    app = known.app("t", "m", "Build 17 of the helper.\nrest")
    assert known.app("t", "m", "Build 18 of the helper.\nother") is app
    for domain, model, text in (("u", "m", "Build 17 of the helper."), ("t", "n", "Build 17 of the helper."), ("t", "m", "Another")):
        assert known.app(domain, model, text) is not app


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MAX_APPS", "_MAX_SKELETONS"):
        monkeypatch.setattr(apps, name, 10)
    known, app = Apps(), App()
    for n in range(50):
        known.app("t", "m", "abcdefghij"[n % 10] * n)
        volatile(app, [f"{'x' * n} line {n}\n"], None)
    assert len(known._apps) <= 10
    assert len(app.values) <= 10


def test_slots_of_a_conversation_stay_as_they_were() -> None:
    app = App()
    for n in range(3):
        found, known = volatile(app, [f"customer {n}\n"], None)
    assert found == [True]
    early = Known(frozenset(), array(NAMES, described(["customer 9"]).names), frozenset())
    assert volatile(app, ["customer 9\n"], early)[0] == [False]
    assert volatile(app, ["customer 9\n"], known)[0] == [True]


RULES = ["You help.\n", "Be kind.\n", "\n"]
MORE = [f"{word} is a rule.\n" for word in ("This", "That", "Here", "There", "Now")]


def talk(app: App, *turns: list[str]) -> list[list[str]]:
    """One conversation by its prompts; which lines of each turn leave."""
    known, found = None, []
    for lines in turns:
        leaves, known = volatile(app, lines, known)
        found.append([line for line, gone in zip(lines, leaves, strict=True) if gone])
    return found


def ending(*last: str) -> list[list[str]]:
    return [[*MORE, *RULES, line] for line in last]


def test_a_line_that_changes_leaves_and_the_rest_stays_as_it_was() -> None:
    """From the turn on in which it changed, whatever it says; what it says again later leaves too."""
    app = App()
    assert talk(app, *ending("Be brief.", "Think first.", "Think first.", "Be brief.")) == [[], ["Think first."], ["Think first."], ["Be brief."]]


def test_what_changed_again_and_again_leaves_the_next_conversation_at_once() -> None:
    app = App()
    talk(app, *ending("Be brief.", "Think first.", "Hurry up.", "Be careful."))
    assert talk(app, *ending("Take a break.", "Go on.")) == [["Take a break."], ["Go on."]]
    assert talk(app, *ending("Go on.", "Go on.")) == [["Go on."], ["Go on."]]


def test_what_stays_more_often_than_it_changes_is_left() -> None:
    app = App()
    talk(app, *ending("Be brief.", "Think first.", "Hurry up.", "Be careful."))
    for n in range(5):
        talk(app, *ending(f"Customer {'abcde'[n]}.", *[f"Customer {'abcde'[n]}."] * 3))
    assert talk(app, *ending("Customer x.")) == [[]]


def test_a_line_that_differs_between_conversations_only_is_not() -> None:
    app = App()
    for name in ("Ann", "Bob", "Cid", "Dan", "Eve"):
        assert talk(app, *ending(f"Your user is {name}.", f"Your user is {name}.")) == [[], []]


def test_what_grows_leaves_until_it_is_too_much() -> None:
    app, lines = App(), [*MORE, *RULES, "Notes.\n"]
    turns = [[*lines, *[f"Also {word}.\n" for word in ("one", "two", "three")[:n]]] for n in range(4)]
    assert talk(app, *turns) == [[], *[turn[len(lines):] for turn in turns[1:]]]
    long = [*lines, *[f"Line {'x' * 30} {n}.\n" for n in range(200)]]
    assert talk(App(), lines, long, [*long, "One more.\n"]) == [[], [], ["One more.\n"]]


@given(st.lists(st.lists(st.sampled_from(["a\n", "b\n", "c 1\n", "\n", "d"]), max_size=8), min_size=2, max_size=5))
def test_what_stays_is_what_stayed(prompts: list[list[str]]) -> None:
    """Once a line has left, it never stands in the kept text again unless the whole prompt was given up."""
    app, known = App(), None
    for lines in prompts:
        before = known
        leaves, known = volatile(app, lines, known)
        kept = list(described([line for line, gone in zip(lines, leaves, strict=True) if not gone]).names)
        assert list(known.kept) == kept
        if before is not None and any(leaves) and not any(told.kind for told in described(lines).told.values()):
            assert _is_within(kept, list(before.kept))


def _is_within(some: list[int], all_: list[int]) -> bool:
    rest = iter(all_)
    return all(any(one == other for other in rest) for one in some)


def test_lines_without_words_do_not_speak_for_the_last_one() -> None:
    """Bullets and numbers near the end stay; that the last line changes is learnt all the same."""
    app = App()
    for n in range(2):
        talk(app, *[[*MORE, "- 1\n", "- 2\n", "- 3\n", f"{word} {n}x it.\n".replace("x", "")] for word in ("Mind", "Watch", "Skip", "Try")])
    assert talk(app, [*MORE, "- 1\n", "- 2\n", "- 3\n", "Leave it be."]) == [["Leave it be."]]
