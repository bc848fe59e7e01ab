"""Where a mark may be worth while."""
from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.planner.places import Page, places
from gateway.prefix.chain import chain


def page(body: dict[str, Any], dialect: str, *, tools_last: bool = False) -> Page:
    if tools_last:
        body = {**{k: v for k, v in body.items() if k != "tools"}, "tools": body["tools"]}
    raw = orjson.dumps({"model": "m", "max_tokens": 1, **body})
    sketch = dialects.read(dialect, raw)
    parts = sketch.parts
    links = chain("t", "m", parts)
    return Page(dialect=dialect, body=raw, spans=sketch.spans, parts=parts, keys=links.keys, ends=links.ends, root="t m")


def say(*texts: str, system: bool = False) -> list[dict[str, Any]]:
    talk = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return [{"role": "system", "content": "rules"}, *talk] if system else talk


TOOLS = [{"name": "t"}]
DOCUMENT = [{"role": "user", "content": [{"type": "text", "text": "document"}, {"type": "text", "text": "question"}]}]


@pytest.mark.parametrize(("body", "dialect", "kinds"), [
    ({"tools": TOOLS, "system": "s", "messages": say("a")}, "anthropic_messages", ["tools", "system", "opening"]),
    ({"messages": say("a")}, "anthropic_messages", ["opening"]),
    ({"system": "s", "messages": say("a", "b", "c")}, "anthropic_messages", ["system", "before", "before", "opening"]),
    ({"system": [{"type": "text", "text": "x"}, {"type": "text", "text": "now"}], "messages": say("a")}, "anthropic_messages", ["head", "system", "opening"]),
    ({"system": "s", "messages": DOCUMENT}, "anthropic_messages", ["system", "before", "opening"]),
    ({"tools": TOOLS, "messages": say("a", system=True)}, "openai_chat", ["system", "opening"]),
    ({"messages": say("a", "b", "c")}, "openai_chat", ["before", "before", "opening"]),
    ({"instructions": "i", "input": say("a")}, "openai_responses", ["opening"]),
    ({"input": "just text"}, "openai_responses", ["opening"]),
])  # fmt: skip
def test_places(body: dict[str, Any], dialect: str, kinds: list[str]) -> None:
    found = places(page(body, dialect), "opening", -1)
    assert [place.kind for place in found] == kinds
    assert [place.end_bytes for place in found] == sorted(place.end_bytes for place in found)


def test_what_the_cache_holds_is_a_place() -> None:
    one = page({"system": "s", "messages": say("a", "b", "c", "d", "e")}, "anthropic_messages")
    assert [(place.kind, place.part) for place in places(one, "opening", 3)] == [("system", 0), ("again", 3), ("before", 4), ("opening", 5)]


def test_where_an_earlier_prompt_parted_is_a_place() -> None:
    one = page({"system": "s", "messages": say("a", "b", "c", "d", "e")}, "anthropic_messages")
    assert [(place.kind, place.part) for place in places(one, "opening", -1, 2)] == [("system", 0), ("again", 2), ("before", 3), ("before", 4), ("opening", 5)]


def test_the_order_of_fields_in_the_json_does_not_matter() -> None:
    body = {"tools": TOOLS, "system": "s", "messages": say("a", "b", "c")}
    first, second = page(body, "anthropic_messages"), page(body, "anthropic_messages", tools_last=True)
    assert (first.opening, first.first_message) == (second.opening, second.first_message) == (2, 2)
    assert [p.key for p in places(first, "opening", -1)] == [p.key for p in places(second, "opening", -1)]


def test_one_document_and_two_questions_share_the_place_between() -> None:
    other = [{"role": "user", "content": [DOCUMENT[0]["content"][0], {"type": "text", "text": "another"}]}]
    ends = [places(page({"messages": messages}, "anthropic_messages"), "opening", -1) for messages in (DOCUMENT, other)]
    assert ends[0][0].key == ends[1][0].key
    assert ends[0][1].key != ends[1][1].key


def test_a_message_is_routed_by_its_words() -> None:
    """However they are wrapped; what a provider renders alike begins alike."""
    words = "Keep to the manual. " * 60
    text, other = ({"messages": [{"role": "system", "content": said}, *say("a")]} for said in (words, "Other " + words))
    block = {"messages": [{"role": "developer", "content": [{"type": "text", "text": words}]}, *say("b")]}
    assert page(text, "openai_chat").beginning == page(block, "openai_chat").beginning != page(other, "openai_chat").beginning
