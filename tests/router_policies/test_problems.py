import pytest

from router_policies.problems import BadFile, Problem, did_you_mean, nearest, printable


def test_a_problem_reads_like_a_compiler_message():
    """file:line:column, so that editors jump there."""
    assert str(Problem("a.yaml", 3, 5, "rules[0].when", "is wrong", "write x")) == "a.yaml:3:5: rules[0].when: is wrong (write x)"
    assert str(Problem("a.yaml", 1, 1, "", "is empty")) == "a.yaml:1:1: is empty"


def test_a_bad_file_lists_each_problem_once_in_order():
    """The reader goes from top to bottom."""
    late, early = Problem("a.yaml", 9, 1, "", "late"), Problem("a.yaml", 2, 1, "", "early")
    assert BadFile([late, early, late]).problems == (early, late)


@pytest.mark.parametrize(("word", "near"), [
    ("interactiv", "interactive"), ("Standart", "standard"), ("budgt", "budgets"), ("default-class", "default_class"), ("zzz", None),
])
def test_the_nearest_word_is_found(word, near):
    """Letters, case and dashes may be off."""
    assert nearest(word, ["interactive", "standard", "budgets", "default_class"]) == near


def test_without_a_near_word_a_few_are_listed():
    """But never a long list."""
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", map(str, range(100_000, 100_050))) == ""


def test_names_are_made_safe_to_print():
    """No control characters, no endless names."""
    assert printable("a\x1b[31m\n\u202e") == "a?[31m??"
    assert len(printable("x" * 1_000)) < 70
