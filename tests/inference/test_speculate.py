"""Guesses: what followed last time, and how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.speculate import AdaptiveLength, NgramProposer


def _naive(tokens: list[int], most: int) -> list[int]:
    for size in (4, 3, 2):
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) > size and tokens[end - size : end] == tokens[-size:]:
                return tokens[end : end + most]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 5), max_size=20))
def test_the_index_says_what_a_scan_would(tokens: list[int], steps: list[int]) -> None:
    """However the list grows between calls, the longest last match is found."""
    proposer, size = NgramProposer(), 1
    for step in [*steps, 60]:
        assert proposer.propose(tokens[:size], 5) == _naive(tokens[:size], 5)
        size = min(len(tokens), size + step)


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        pytest.param([(3, 3)], 5, id="all right: more"),
        pytest.param([(3, 3), (5, 5), (7, 7)], 7, id="up to the most"),
        pytest.param([(3, 3), (5, 1)], 3, id="one right: fewer"),
        pytest.param([(3, 0)] * 5, 3, id="misses are borne"),
        pytest.param([(3, 0)] * 6, 0, id="but not for ever"),
        pytest.param([(3, 0)] * 6 + [(0, 0)] * 16, 3, id="then it is tried again"),
    ],
)
def test_the_length_follows_success(steps: list[tuple[int, int]], want: int) -> None:
    """Full acceptance lengthens drafts, a run of misses ends them for sixteen steps."""
    length = AdaptiveLength()
    for drafted, accepted in steps:
        length.record(drafted, accepted)
    assert length.length == want
