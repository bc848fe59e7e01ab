"""A view after edits is what reading the edited body again would give, though only what was edited is looked at."""
from __future__ import annotations

from typing import Any

import pytest

from gateway import dialects
from gateway.dialects.parts import parts
from gateway.dialects.splice import Edit
from gateway.normalize import View
from tests.normalize.views import assistant, places_of, system, user, view

LONG = "words " * 900
BODY: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "a"}}], "messages": [system(LONG), user(LONG), assistant(LONG), user("last " + LONG)]}


def at(seen: View, item: int) -> tuple[int, int]:
    part = next(part for part in seen.parts if part.field == "messages" and part.item == item)
    return part.start, part.end


@pytest.mark.parametrize("items", [(), (0,), (3,), (0, 3), (1, 2)])
@pytest.mark.parametrize("new", [b"", b"x", b"a word or two"])
def test_parts_are_where_they_would_be_found(items: tuple[int, ...], new: bytes) -> None:
    """Text put into messages, or taken out of them."""
    seen = view(BODY, "relocating")
    edits: list[Edit] = [(seen.body.index(b"words", at(seen, n)[0]), seen.body.index(b"words", at(seen, n)[0]) + 5, new) for n in items]
    after = seen.edited(edits)
    assert places_of(after.parts) == places_of(parts(after.body, after.spans, seen.order, seen.domain))
    assert after.spans == dialects.read("openai_chat", after.body).spans


def test_a_message_that_goes_is_no_part_any_more() -> None:
    seen = view(BODY, "relocating")
    after = seen.edited([(at(seen, 0)[0], at(seen, 1)[0], b"")])
    assert places_of(after.parts) == places_of(parts(after.body, after.spans, seen.order, seen.domain))
    assert len(after.parts) == len(seen.parts) - 1


def test_a_whole_field_may_be_another() -> None:
    seen = view(BODY, "relocating")
    start, end = seen.spans["tools"]
    after = seen.edited([(start, end, b'[{"type":"function","function":{"name":"other"}}]')])
    assert places_of(after.parts) == places_of(parts(after.body, after.spans, seen.order, seen.domain))
