"""Marks go in by insertion: nothing else of the request changes."""
from __future__ import annotations

import pytest

from gateway.dialects import splice
from gateway.planner import marks

MARK = b'"cache_control":{"type":"ephemeral"}'


@pytest.mark.parametrize(("content", "dialect", "after"), [
    (b'"hello"', "anthropic_messages", b'[{"type":"text","text":"hello",' + MARK + b"}]"),
    (b'"hello"', "openai_responses", b'[{"type":"input_text","text":"hello",' + MARK + b"}]"),
    (b'[ {"type" : "text", "text":"a"} , {"type":"image"} ]', "openai_chat", b'[ {"type" : "text", "text":"a"} , {"type":"image",' + MARK + b"} ]"),
    (b'""', "anthropic_messages", None), (b"null", "openai_chat", None), (b"[]", "openai_chat", None),
    (b'[{"type":"thinking","thinking":"x"}]', "anthropic_messages", None), (b'[{"type":"text","text":""}]', "anthropic_messages", None),
    (b'[{"text":"a"}]', "anthropic_messages", None), (b'["a"]', "anthropic_messages", None),
])  # fmt: skip
def test_a_content_is_marked_in_place(content: bytes, dialect: str, after: bytes | None) -> None:
    edit = marks.on_content(content, (0, len(content)), MARK, dialect)
    assert (None if edit is None else splice.splice(content, [edit])) == after


def test_a_mark_may_stand_inside() -> None:
    content = b'[{"type":"text","text":"document"},{"type":"text","text":"question"}]'
    edit = marks.on_content(content, (0, len(content)), MARK, "anthropic_messages", 0)
    assert edit is not None
    assert splice.splice(content, [edit]) == b'[{"type":"text","text":"document",' + MARK + b'},{"type":"text","text":"question"}]'
    assert marks.on_content(content, (0, len(content)), MARK, "anthropic_messages", 7) is None


@pytest.mark.parametrize(("tools", "after"), [
    (b'[{"name":"a"}, {"name":"b"} ]', b'[{"name":"a"}, {"name":"b",' + MARK + b"} ]"), (b"[]", None), (b"null", None),
])  # fmt: skip
def test_the_last_tool_is_marked(tools: bytes, after: bytes | None) -> None:
    edit = marks.on_last_tool(tools, (0, len(tools)), MARK)
    assert (None if edit is None else splice.splice(tools, [edit])) == after


def test_edits_become_new_values_of_their_fields() -> None:
    body = b'{"a": [1], "b": [2]}'
    assert marks.fields(body, splice.spans(body), [(8, 8, b",9")]) == {"a": b"[1,9]"}
