from router_policies.turns import Turns

HERE, THERE = ("t", "k", "", "c", "m"), ("t", "k", "run", "c", "m")


def test_the_gap_is_from_the_end_of_an_answer_to_a_longer_prompt():
    """Anything else is no next turn."""
    turns = Turns()
    assert turns.gap_s(HERE, 1.0, 100) is None
    turns.answered(HERE, 10.0, 100)
    assert (turns.gap_s(HERE, 12.5, 101), turns.gap_s(HERE, 12.5, 100), turns.gap_s(THERE, 12.5, 101)) == (2.5, None, None)
    assert turns.gap_s(HERE, 9.0, 101) == 0.0, "calls may overlap"


def test_the_oldest_are_forgotten():
    """Memory is bounded."""
    turns = Turns(most=1)
    turns.answered(HERE, 1.0, 1)
    turns.answered(THERE, 2.0, 1)
    assert (turns.gap_s(HERE, 3.0, 2), turns.gap_s(THERE, 3.0, 2)) == (None, 1.0)
