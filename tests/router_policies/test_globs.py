import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_policies.globs import Glob, complaint, first_match, globs


@pytest.mark.parametrize(("pattern", "text", "hit"), [
    ("*", "", True), ("*", "x", True), ("gpt-5*", "gpt-5.5", True), ("gpt-5*", "gpt-4", False), ("*-preview", "a-preview", True),
    ("*-preview", "a-preview-2", False), ("a?c", "abc", True), ("a?c", "ac", False), ("a*b*c", "axxbyyc", True), ("a.c", "abc", False),
    ("", "", True), ("x", "", False), ("a**", "a", True),
])
def test_star_and_question_mark_are_all_there_is(pattern, text, hit):
    """Every other character stands for itself."""
    assert Glob(pattern).matches(text) is hit


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
@settings(max_examples=300, deadline=None)
def test_it_matches_what_the_same_regular_expression_would(pattern, text):
    """The hand-written walk against Python's re."""
    same = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    assert Glob(pattern).matches(text) == (re.fullmatch(same, text, re.DOTALL) is not None)


def test_no_pattern_can_take_long():
    """The pattern that costs a backtracking engine an age is done at once."""
    start = time.thread_time()
    assert not Glob("*a" * 100 + "b").matches("a" * 5_000)
    assert time.thread_time() - start < 5


@pytest.mark.parametrize("pattern", ["(a+)+$", "^gpt", "[ab]", "a|b", "x{2}", "a\\d", "", "x" * 201])
def test_what_looks_like_a_regular_expression_is_refused(pattern):
    """A pattern that silently never matches is worse than an error."""
    assert complaint(pattern)


def test_first_match_is_the_first():
    """Order is the author's."""
    assert str(first_match(globs(["b*", "*"]), "bcd")) == "b*"
    assert first_match(globs(["b*"]), "x") is None
