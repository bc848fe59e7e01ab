"""The place of a difference, as the app would count it."""
from __future__ import annotations

import json

import pytest

from gateway.prefix.difference import between
from gateway.prefix.outline import outline

HEAD, TAIL = "Ünï\u2028code \\ \"quoted\"\n" * 3, "\nthe rest, which is the same in both\n" * 3


@pytest.mark.parametrize(("old", "new", "kind"), [
    ("Current time: 10:00", "Current time: 10:05", "timestamp"), ("Today is Monday, November 30, 2026", "Today is Tuesday, December 1, 2026", "date"),
    ("trace id = 8f3a", "trace id = 77b1", "id"), ("Step: 4", "Step: 5", "counter"), ("Current branch: main", "Current branch: dev", "git"),
    ("Be brief about it.", "Be long about it.", "edit"), ("Be brief  about it.", "Be brief about it.", "whitespace"), ("caf\u00e9", "cafe\u0301", "unicode"),
    ("Items 4711 sold", "Items 4712 sold", "counter"),
])  # fmt: skip
def test_kind_and_place(old: str, new: str, kind: str) -> None:
    """Characters of the text, whatever its JSON looks like; the range covers the first that differs."""
    text = HEAD + new + TAIL
    before = json.dumps({"role": "system", "content": [{"type": "text", "text": HEAD + old + TAIL}]}).encode()
    found = between(outline(before), json.dumps({"role": "system", "content": [{"type": "text", "text": text}]}).encode(), "/messages/0", talk=False)
    assert (found.kind, found.path) == (kind, "/messages/0/content/0/text")
    first = len(HEAD) + next(n for n in range(99) if old[n : n + 1] != new[n : n + 1])
    assert len(HEAD) <= found.start <= first < found.end <= len(HEAD) + len(new) + 2


def test_another_spelling_of_the_same_json_is_a_form() -> None:
    one, other = b'{"a~b":{"c/d":1},"x":[1,2]}', b'{"x": [1, 2], "a~b": {"c/d": 1}}'
    assert between(outline(one), other, "/tools/0", talk=False).kind == "json_form"


def test_pointers_are_escaped() -> None:
    long = "x" * 60
    one, other = (json.dumps({"a~b": {"c/d": [text]}}) for text in (long, long[:-1] + "y"))
    assert between(outline(one.encode()), other.encode(), "", talk=False).path == "/a~0b/c~1d/0"
