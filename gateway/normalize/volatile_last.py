"""Volatile lines leave the system prompt and stand behind the last message, where they spoil no prefix.

Relocating: the model sees the same words later, labelled as the system prompt's. They are put behind a message once, when
they have changed, and stay there in all later turns, so that a conversation only ever grows at its end. A prompt that
nothing can be put behind, or of which nothing would be left, goes on as it came; a message of the system's that says nothing
else goes whole.
"""
from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import sha256
from itertools import compress
from operator import not_

from gateway.core.errors import BadRequest
from gateway.core.part import Part
from gateway.core.patterns import NAMES, units
from gateway.dialects import splice
from gateway.dialects.parts import role_of
from gateway.normalize.apps import Known, volatile
from gateway.normalize.memory import Memory, Session
from gateway.normalize.system import Instruction, encoded, goes_whole, instructions, replaced
from gateway.normalize.view import Change, Unreadable, View

LABEL = "[system prompt, now]"
_TEXT_TYPE = {"openai_responses": "input_text"}
_NOTHING = Known(frozenset(), array(NAMES), frozenset())
_CARRIERS = frozenset({"user", "tool"})


def volatile_last(memory: Memory, session: Session, view: View) -> list[Change]:
    """Needs a conversation that was met at its beginning. Raises `Unreadable` for a prompt whose shape it does not know."""
    if session.adopted or not view.talk.id:
        return []
    edits: list[Change] = []
    moved: list[str] = []
    known: dict[str, Known] = {}
    for found in instructions(view):
        lines = units(found.text)
        app = memory.apps.app(view.domain, view.model, found.text)
        before = session.known.get(found.path, _NOTHING) if view.talk.under_way else None
        leaves, known[found.path] = volatile(app, lines, before)
        if any(leaves):
            edits += _taken_out(view, found, lines, leaves, moved)
    if known != session.known:
        session.known, session.changed = known, True
    if not moved and not session.placed:
        return []
    return edits + _placed(memory, session, view, "".join(moved).strip("\n "))


def _taken_out(
    view: View, found: Instruction, lines: list[str], leaves: list[bool], moved: list[str]
) -> Iterator[Change]:
    kept = "".join(compress(lines, map(not_, leaves)))
    if leaves[-1]:
        kept = kept.rstrip("\n")  # the line ends before it come and go with it
    if kept.strip() or goes_whole(view, found):
        moved += [line if line.endswith("\n") else line + "\n" for line in compress(lines, leaves)]
        yield replaced(view, found, kept)


def _placed(memory: Memory, session: Session, view: View, text: str) -> list[Change]:
    """What earlier turns put behind their messages, again, and `text` behind the last one if it is news. Raises `Unreadable`
    where that cannot be said anywhere."""
    named, last = sha256(view.domain.encode("utf-8", "replace")), ""
    talk, edits = view.parts[view.talk.first :], []
    for part in talk:
        named.update(part.block.named().to_bytes(8))
        where = named.digest()[:16]
        known = session.placed.get(where)
        news = part is talk[-1] and text and text != (known or last)
        fresh = _behind(view, part, text) if news else None
        if fresh is not None and memory.place(session, where, text):
            edits.append(fresh)
            known = text
        elif known is not None and (again := _behind(view, part, known)):
            edits.append(again)
        last = known or last
    if text and text != last:
        raise Unreadable("/messages", "no message that volatile text can be put behind")
    return edits


def _behind(view: View, part: Part, text: str) -> Change | None:
    """Puts `text` at the end of a message; None where its shape does not allow it."""
    body, said = view.body, f"\n\n{LABEL}\n{text}"
    if body.startswith(b'"', part.start):  # the whole input is one text
        return part.path, part.end - 1, part.end - 1, encoded(said)[1:-1]
    try:
        places = splice.spans(body, part.start, part.end, where=part.path)
    except BadRequest:
        return None
    role, name = role_of(body, part), "content"
    if role not in _CARRIERS:
        if "output" not in places or "call_id" not in places:
            return None
        name = "output"
    start, end = places.get(name, (0, 0))
    path = f"{part.path}/{name}"
    if body.startswith(b'"', start) and start and not part.block.marked:
        return path, end - 1, end - 1, encoded(said)[1:-1]
    if role != "user" or not body.startswith(b"[", start) or not start:
        return None
    kind = _TEXT_TYPE.get(view.dialect, "text")
    comma = b"," if body[start + 1:end - 1].strip() else b""
    return path, end - 1, end - 1, comma + b'{"type":"%s","text":%s}' % (kind.encode(), encoded(said.strip()))
