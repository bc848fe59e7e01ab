"""What a line says of itself, and what is only a number in it."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.patterns import described, heads_state, kind_of, skeleton, units


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
    assert heads_state("gitStatus:")
    assert heads_state("Recent commits: ")
    assert not heads_state("Status: good")


def test_skeletons_agree_where_only_values_differ() -> None:
    assert skeleton("build a1b2c3d of /srv/app/one at 10:05") == skeleton("build 99ffe01 of /srv/other at 9:10")
    assert skeleton("Be brief.") != skeleton("Be long.")


@given(st.text(alphabet=" .\nA b?", max_size=600))
def test_units_are_the_text(text: str) -> None:
    assert "".join(units(text)) == text


@pytest.mark.parametrize("text", ["", "\n", "a", "a\nb", "a\rb\n", "a\r\nb\r\n", "a\x0bb\n\u2028\nc", "\n\r\n\n"])
def test_a_line_ends_with_a_line_feed_and_nowhere_else(text: str) -> None:
    """As `described` reads them, by names: whatever else Python takes for an end of a line."""
    assert [unit.rstrip("\n") for unit in units(text)] == (text[:-1] if text.endswith("\n") else text).split("\n") * bool(text)
    assert described(units(text)).names == described([unit.rstrip("\n") for unit in units(text)]).names


LINE = st.text(alphabet="Aa b1:/-.\u00e9#", max_size=40) | st.sampled_from([
    "Current time: 10:05", "Request ID: req_0a1b2c", "gitStatus:", "HEAD is 3fa9c1b", "Today is Monday.", "12. Be brief.", "/srv/app/one",
])  # fmt: skip


@given(st.lists(LINE, max_size=12))
def test_lines_say_together_what_they_say_alone(lines: list[str]) -> None:
    """Whatever stands around a line; line ends are no part of it."""
    together = described([line + "\n" for line in lines])
    for n, line in enumerate(lines):
        alone = described([line])
        assert (together.names[n], together.told.get(n)) == (alone.names[0], alone.told.get(0))


@pytest.mark.parametrize(("one", "other"), [
    ("You speak with customer 07 today.", "You speak with customer 12 today."), ("[ref 8a3f]", "[ref c991]"),
    ('{"clock": "3:05 PM", "tz": "PST"}', '{"clock": "11:40 AM", "tz": "PST"}'), ("Stand: 30.11.2026 9:05 Uhr", "Stand: 1.12.2026 17:40 Uhr"), ("id_x9 of 4", "id_77 of 12"),
])  # fmt: skip
def test_lines_of_one_skeleton(one: str, other: str) -> None:
    a, b = (described([line]).told[0] for line in (one, other))
    assert a.bare == b.bare != 0


@pytest.mark.parametrize("line", ["Follow the rules.", "12. Follow the rules.", "A header, ahead of the tree.", "Read a/b."])
def test_most_lines_say_nothing(line: str) -> None:
    assert described([line]).told == {}
