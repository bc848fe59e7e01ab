"""What a line says of itself, and what is only a number in it."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.patterns import GIT_SECTION, kind_of, skeleton, units


@pytest.mark.parametrize(("line", "kind"), [
    ("Current time: 10:05", "timestamp"), ("The time is 2026-11-30T10:05:11Z.", "timestamp"), ("2026-11-30 10:05:11", "timestamp"),
    ("now=1790000000", "timestamp"), ("Today's date: 2026-11-30", "date"), ("Today is Monday, November 30, 2026.", "date"),
    ("Date: 30 Nov 2026", "date"), ("nonce: 8f3a9b", "nonce"), ("cache-buster 77", "nonce"), ("Request ID: req_0a1b2c", "id"),
    ("session 0b6e2a5c-1111-4222-8333-123456789abc", "id"), ("Turn: 12", "counter"), ("You are at step 4; think first.", "counter"), ("tokens left: 1200", "counter"),
    ("Current branch: main", "git"), ("HEAD is 3fa9c1b", "git"), ("commit 3fa9c1b2", "git"),
    ("API version 2024-01-01", None), ("Use at most 12 lines.", None), ("Your knowledge ends 2023-10.", None), ("Follow the rules.", None),
    ("Listen on port 8080.", None), ("x" * 3000 + " time 10:00", None),
])  # fmt: skip
def test_kinds(line: str, kind: str | None) -> None:
    assert kind_of(line) == kind


def test_sections() -> None:
    assert GIT_SECTION.match("gitStatus:")
    assert GIT_SECTION.match("Recent commits: ")
    assert not GIT_SECTION.match("Status: good")


def test_skeletons_agree_where_only_values_differ() -> None:
    assert skeleton("build a1b2c3d of /srv/app/one at 10:05") == skeleton("build 99ffe01 of /srv/other at 9:10")
    assert skeleton("Be brief.") != skeleton("Be long.")


@given(st.text(alphabet=" .\nA b?", max_size=600))
def test_units_are_the_text(text: str) -> None:
    assert "".join(units(text)) == text
