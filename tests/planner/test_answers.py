"""The last answer of a conversation is known where it was given."""
from __future__ import annotations

from gateway.planner.answers import Answers


def test_the_last_one_counts_at_its_own_pool() -> None:
    answers = Answers()
    for name in ("one", "two"):
        answers.keep("pool", "talk", name)
    assert answers.last("pool", "talk") == "two"
    assert answers.last("other", "talk") is None
    assert answers.last("pool", "other") is None


def test_nothing_nameless_is_kept_and_not_too_much() -> None:
    answers = Answers(most=3)
    answers.keep("pool", "", "one")
    answers.keep("pool", "talk", None)
    for n in range(9):
        answers.keep("pool", f"talk {n}", "one")
    assert [answers.last("pool", f"talk {n}") for n in range(9)] == [None] * 6 + ["one"] * 3
    assert answers.last("pool", "talk") is None
