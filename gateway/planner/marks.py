"""Puts marks on blocks of a request, in place: an insertion before a block's last brace, nothing else is touched.

A string that is marked becomes a list with one text block, which the providers render alike. What cannot bear a mark
(thinking, an empty text, a shape that is not known) is not marked.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.errors import BadRequest
from gateway.dialects import splice
from gateway.dialects.splice import Edit, Span

_UNMARKABLE = frozenset({"thinking", "redacted_thinking", "refusal", "output_text"})
_TEXT_OF = {"openai_responses": "input_text"}


def blocks(body: bytes, span: Span) -> list[Span]:
    """Places of the blocks of a list of blocks; a string has none."""
    return splice.items(body, *span)


def content(body: bytes, message: Span) -> Span | None:
    """Where a message's content stands."""
    try:
        return splice.spans(body, *message, where="message").get("content")
    except (BadRequest, ValueError):
        return None


def on_last_tool(body: bytes, tools: Span, mark: bytes) -> Edit | None:
    """A mark behind all tools."""
    if body[tools[0] : tools[0] + 1] != b"[":
        return None
    end = body.rfind(b"}", *tools)
    return None if end < 0 else (end, end, b"," + mark)


def on_content(body: bytes, value: Span, mark: bytes, dialect: str, block: int = -1) -> Edit | None:
    """A mark on one block of a content, its last one if nothing is said; None: it cannot bear one."""
    first = body[value[0] : value[0] + 1]
    if first == b'"':
        if value[1] - value[0] <= 2 or block != -1:
            return None
        kind = _TEXT_OF.get(dialect, "text").encode()
        return (*value, b'[{"type":"%s","text":%s,%s}]' % (kind, body[slice(*value)], mark))
    if first != b"[":
        return None
    places = blocks(body, value)
    if not places or not -len(places) <= block < len(places):
        return None
    return on_block(body, places[block], mark)


def on_block(body: bytes, place: Span, mark: bytes) -> Edit | None:
    """A mark on one block; None: it cannot bear one."""
    return (place[1] - 1, place[1] - 1, b"," + mark) if _bears(body[slice(*place)]) else None


class _Head(msgspec.Struct):
    type: str = ""
    text: str | None = None


_head = msgspec.json.Decoder(_Head)


def _bears(block: bytes) -> bool:
    try:
        head = _head.decode(block)
    except msgspec.MsgspecError:
        return False
    return bool(head.type) and head.type not in _UNMARKABLE and head.text != ""


def fields(body: bytes, spans: Mapping[str, Span], edits: Sequence[Edit]) -> dict[str, bytes]:
    """The edits as new values of the top-level fields that they stand in."""
    changed: dict[str, bytes] = {}
    for name, (start, end) in spans.items():
        own = [(a - start, b - start, new) for a, b, new in edits if start <= a < end]
        if own:
            changed[name] = splice.splice(body[start:end], own)
    return changed
