"""The parts of a prompt in the order in which the provider renders them, found without decoding them.

A part is the settings that are rendered ahead of all else, the list of tools, one system block, or one message. Where a
field is a list of blocks or messages each is a part of its own; what has another shape is one part.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.dialects import splice
from gateway.dialects.splice import Span

_LISTED = frozenset({"messages", "input", "system"})
_TALKS = ("messages", "input")
_FEW = 64
"""Messages looked at for their role; a conversation opens long before."""


class _Role(msgspec.Struct):
    role: str = ""
    type: str = ""


_role = msgspec.json.Decoder(_Role)


MARKERS = (b'"cache_control"', b'"prompt_cache_breakpoint"')
"""Keys by which a client marks where a cache entry should end; they are no part of what the model sees."""
_MARKER = re.compile(rb'(,\s*)?"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:null|\{[^{}]*\})(\s*,\s*)?')
_LONG = 65_536


class Part(NamedTuple):
    """`field` is its top-level field, `item` its place in that field's list, -1 for the whole value."""

    start: int
    end: int
    field: str
    item: int = -1

    @property
    def path(self) -> str:
        """As a JSON Pointer."""
        return f"/{self.field}" if self.item < 0 else f"/{self.field}/{self.item}"


_part = partial(tuple.__new__, Part)


def parts(body: bytes, spans: Mapping[str, Span], order: Sequence[str]) -> list[Part]:
    """`order`: the prompt's fields as they are rendered; what is absent or null is left out."""
    found: list[Part] = []
    for name in order:
        place = spans.get(name)
        if place is None:
            continue
        start, end = place
        if name in _LISTED and body.startswith(b"[", start):
            found += [_part((a, b, name, n)) for n, (a, b) in enumerate(splice.items(body, start, end))]
        elif end - start > 4 or body[start:end] != b"null":
            found.append(Part(start, end, name))
    return found


def opening(body: bytes, found: Sequence[Part]) -> tuple[int, int, bool]:
    """Where a conversation begins: parts first:last are what the user said before the first answer; whether there is one."""
    first = last = -1
    for n, part in enumerate(found):
        if part.field not in _TALKS:
            continue
        if part.item < 0:
            return n, n + 1, False
        role = role_of(body, part)
        if role == "user":
            first = n if first < 0 else first
            last = n + 1
        elif first >= 0 and role not in ("system", "developer"):
            return first, last, True
        elif role not in ("system", "developer") or part.item > _FEW:
            return n, n + 1, True
    return (first, last, False) if first >= 0 else (0, 0, False)


def marked(value: bytes) -> bool:
    """Whether the client has set a marker of its own in this part."""
    return MARKERS[0] in value or MARKERS[1] in value


def unmarked(value: bytes) -> bytes:
    """The same without the client's markers: what a cache compares."""
    if not marked(value):
        return value
    return _MARKER.sub(lambda found: found[1] if found[1] and found[2] else b"", value)


class Conversation(msgspec.Struct, frozen=True):
    """`id` names it in all of its turns, wherever its markers stand: b"" where nobody has said anything.

    Parts `first:last` are what the user said before the first answer.
    """

    id: bytes
    first: int
    last: int
    under_way: bool


def conversation(domain: str, model: str, body: bytes, found: Sequence[Part]) -> Conversation:
    """Recognised by what it opened with: neither headers nor the system prompt, which may change, are needed."""
    named = _root(domain, model).copy()
    if len(found) == 1 and found[0].item >= 0 and (text := _only_text(body, found[0])) is not None:
        named.update(text + b"\0")
        return Conversation(named.digest(), 0, 1, False)
    first, last, under_way = opening(body, found)
    if first == last:
        return Conversation(b"", first, last, under_way)
    for part in found[first:last]:
        value = body[part.start:part.end]
        if len(value) > _LONG:
            named.update(unmarked(value))
        else:
            for piece in _said(value):
                named.update(piece + b"\0")
    return Conversation(named.digest(), first, last, under_way)


@lru_cache(4_096)
def _root(domain: str, model: str) -> Any:
    return blake2b(f"{domain}\0{model}\0".encode("utf-8", "replace"), digest_size=16)


def _only_text(body: bytes, part: Part) -> bytes | None:
    """What a user says in a short message that is one text: the usual small call, decoded once. None for any other."""
    if part.end - part.start > _LONG or part.field not in _TALKS:
        return None
    try:
        message = orjson.loads(body[part.start:part.end])
    except orjson.JSONDecodeError:
        return None
    if isinstance(message, dict) and message.get("role") == "user" and isinstance(text := message.get("content"), str):
        return text.encode("utf-8", "surrogatepass")
    return None


def _said(value: bytes) -> Iterator[bytes]:
    """What a message says, in whichever of its equal forms it was sent."""
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError:
        yield value
        return
    content: Any = message.get("content") if isinstance(message, dict) else message
    for block in content if isinstance(content, list) else [content]:
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            yield text.encode("utf-8", "surrogatepass")
        else:
            yield unmarked(orjson.dumps(block))


def assistant_text(body: bytes, part: Part) -> bytes | None:
    """What the assistant said in a message, None if it is not its."""
    if part.field not in _TALKS or part.item < 0 or role_of(body, part) != "assistant":
        return None
    return b"".join(_said(body[part.start:part.end]))


def role_of(body: bytes, part: Part) -> str:
    """The role of a message; a Responses item without one counts as the assistant's. "" where there is no telling."""
    try:
        head = _role.decode(memoryview(body)[part.start:part.end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return head.role or ("assistant" if head.type else "")
