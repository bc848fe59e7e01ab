"""The texts that instruct the model, wherever a dialect puts them, and edits of them that keep the JSON around them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gateway.core.errors import BadRequest
from gateway.core.part import Part
from gateway.dialects import splice
from gateway.dialects.parts import role_of
from gateway.normalize.view import Change, Unreadable, View

_ROLES = frozenset({"system", "developer"})
_FIELDS = frozenset({"system", "instructions"})


class Instruction(NamedTuple):
    """One text: `start:end` is its JSON string in the body, `block` is what holds it and may be taken out whole."""

    path: str
    start: int
    end: int
    text: str
    block: Part


def instructions(view: View) -> Iterator[Instruction]:
    """Texts ahead of the conversation that carry no marker of the client's. Raises `Unreadable`."""
    for part in view.parts[: view.talk.last or len(view.parts)]:
        instructs = part.field in _FIELDS or (part.field in ("messages", "input") and role_of(view.body, part) in _ROLES)
        if instructs and not part.block.marked:
            yield from _texts(view.body, part)


def _texts(body: bytes, part: Part) -> Iterator[Instruction]:
    if body.startswith(b'"', part.start):
        yield Instruction(part.path, part.start, part.end, _decoded(body, part.start, part.end, part.path), part)
        return
    places = _members(body, part.start, part.end, part.path)
    name = "text" if part.field == "system" else "content"
    if name not in places:
        return
    start, end = places[name]
    path = f"{part.path}/{name}"
    if body.startswith(b'"', start):
        yield Instruction(path, start, end, _decoded(body, start, end, path), part)
    elif body.startswith(b"[", start):
        for n, (a, b) in enumerate(splice.items(body, start, end)):
            block = f"{path}/{n}"
            if body.startswith(b"{", a) and (text := _members(body, a, b, block).get("text")):
                yield Instruction(f"{block}/text", *text, _decoded(body, *text, block), part)


def _members(body: bytes, start: int, end: int, path: str) -> dict[str, splice.Span]:
    if not body.startswith(b"{", start):
        raise Unreadable(path, "neither text nor a block")
    try:
        return splice.spans(body, start, end, where=path)
    except BadRequest as error:
        raise Unreadable(path, str(error)) from error


def _decoded(body: bytes, start: int, end: int, path: str) -> str:
    try:
        return msgspec.json.decode(body[start:end], type=str)
    except msgspec.MsgspecError as error:
        raise Unreadable(path, "text is not a string") from error


def encoded(text: str) -> bytes:
    return msgspec.json.encode(text)


def replaced(view: View, found: Instruction, text: str) -> Change:
    """The text changed in place; where nothing is left of it, its block goes whole if others stay beside it."""
    if not text.strip() and _is_all_of_its_block(found):
        return found.path, *_with_comma(view, found.block), b""
    return found.path, found.start, found.end, encoded(text)


def goes_whole(view: View, found: Instruction) -> bool:
    """Whether the text can go with all that holds it: a message, since the conversation's own stay."""
    return found.block.field in ("messages", "input") and view.talk.first > 0 and _is_all_of_its_block(found)


def _is_all_of_its_block(found: Instruction) -> bool:
    return found.block.item >= 0 and not found.path.startswith(f"{found.block.path}/content/")


def _with_comma(view: View, block: Part) -> tuple[int, int]:
    """A list's element and the comma that has to go with it."""
    beside = [part for part in view.parts if part.field == block.field]
    at = beside.index(block)
    if at + 1 < len(beside):
        return block.start, beside[at + 1].start
    return (beside[at - 1].end, block.end) if at else (block.start, block.end)
