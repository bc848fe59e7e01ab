"""The parts of a prompt in the order in which the provider renders them, found without decoding them.

A part is the settings that are rendered ahead of all else, the list of tools, one system block, or one message. Where a
field is a list of blocks or messages each is a part of its own; what has another shape is one part.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from gateway.core.part import Block, Part
from gateway.dialects import beginnings, blocks, limits, splice
from gateway.dialects.beginnings import Beginning
from gateway.dialects.marking import unmarked
from gateway.dialects.splice import Spans, Spread

_LISTED = frozenset({"messages", "input", "system"})
_TALKS = ("messages", "input")
_FEW = 64
"""Messages looked at for their role; a conversation opens long before."""
_SHORT, _LONG = 4_096, 65_536
"""Bodies up to the first are checked whole, and nothing of them is remembered; messages beyond the second are not decoded."""
_VERY_LONG = 2 << 20
"""Beyond it a list's elements are counted before they are taken apart."""


class Read(msgspec.Struct, frozen=True):
    """The places of a body's fields, its values as far as one pass shows them, and the parts of its prompt."""

    places: Spans
    values: Mapping[str, Any] | None
    parts: list[Part]


def read(body: bytes, order: Sequence[str], domain: str) -> Read:
    """`domain`: whose prompts are known apart from all others'.

    Raises `BadRequest` for what is no JSON object, has a key twice, is not UTF-8 or is over a limit.
    """
    if len(body) <= _SHORT:
        found = splice.spread(body) or Spread(splice.spans(body), {}, None)
        if not body.isascii():
            limits.check_text(body)
        limits.check_shape(body, 0)
        return Read(found.places, found.values, _joined(order, _fields(body, found, order, _passing)))
    if len(body) > _VERY_LONG:
        return _read(domain, body, order, Spread(splice.spans(body), {}, None), None)
    known = beginnings.KNOWN.find(domain, order, body)
    if known is not None and (rest := known.rest(body)) is not None:
        return _read(domain, body, order, rest, known)
    return _read(domain, body, order, splice.spread(body) or Spread(splice.spans(body), {}, None), None)


def _read(domain: str, body: bytes, order: Sequence[str], found: Spread, known: Beginning | None) -> Read:
    """`found`: what follows on the beginning that is known; all of the body, if none is."""
    places = found.places if known is None else {**known.places, **found.places}
    values = found.values if known is None or found.values is None else {**known.values, **found.values}
    if len(places) > limits.MAX_ITEMS:
        raise limits.too_many()
    for name, (start, end) in found.places.items():
        if name not in order:
            blocks.checked(body[start:end], 1)
    fields = _fields(body, found, order, partial(blocks.KNOWN.block, domain), {} if known is None else known.parts)
    talk = next((name for name in _TALKS if name in fields), None)
    if talk is not None and values is not None:
        beginnings.KNOWN.keep(domain, order, body, places, values, fields, talk, known)
    return Read(places, values, _joined(order, fields))


def parts(body: bytes, places: Spans, order: Sequence[str], domain: str) -> list[Part]:
    """`order`: the prompt's fields as they are rendered; what is absent or null is left out. Raises `BadRequest` as `read`."""
    block = partial(blocks.KNOWN.block, domain) if len(body) > _SHORT else _passing
    return _joined(order, _fields(body, Spread(places, {}, None), order, block))


def _fields(
    body: bytes, found: Spread, order: Sequence[str], block: Callable[[bytes, int], Block],
    known: Mapping[str, Sequence[Part]] = {},
) -> dict[str, Sequence[Part]]:  # fmt: skip
    """The parts of each field of the prompt; `known` are those that stand before what was found."""
    fields = dict(known)
    for name in order:
        if name not in found.places:
            continue
        start, end = found.places[name]
        if name in _LISTED and body.startswith(b"[", start):
            if end - start > _VERY_LONG:
                limits.check_shape(body[start:end], 1)
            before = fields.get(name, ())
            listed = found.lists.get(name)
            if listed is None or not (listed or before):
                listed = splice.elements(body, start, end)
            if len(before) + len(listed) > limits.MAX_ITEMS:
                raise limits.too_many()
            new = [Part(a, b, name, n, block(value, 2)) for n, (a, b, value) in enumerate(listed, len(before))]
            fields[name] = [*before, *new] if before else new
        elif end - start > 4 or body[start:end] != b"null":
            fields[name] = [Part(start, end, name, -1, block(body[start:end], 1))]
    return fields


def _joined(order: Sequence[str], fields: Mapping[str, Sequence[Part]]) -> list[Part]:
    found: list[Part] = []
    for name in fields if len(fields) < 2 else order:
        if name in fields:
            found += fields[name]
    return found


def _passing(value: bytes, outer: int) -> Block:
    return blocks.passing(value)


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
    first, last, under_way = opening(body, found)
    if first == last:
        return Conversation(b"", first, last, under_way)
    named = _root(domain, model).copy()
    for part in found[first:last]:
        named.update(_said(body, part))
    return Conversation(named.digest(), first, last, under_way)


@lru_cache(4_096)
def _root(domain: str, model: str) -> Any:
    return blake2b(f"{domain}\0{model}\0".encode("utf-8", "replace"), digest_size=16)


def _said(body: bytes, part: Part) -> bytes:
    """Names what a message says, in whichever of its equal forms it was sent; a very long one in its own form."""
    block = part.block
    if block.said is None:
        if block.size > _LONG:
            block.said = block.named().to_bytes(8)
        else:
            value = body[part.start:part.end]
            _, words = blocks.role_and_words(value)
            block.said = _told(_texts(value)) if words is None else _digest(words + b"\0")
    return block.said


def _told(texts: Iterable[bytes]) -> bytes:
    return _digest(b"".join([text + b"\0" for text in texts]))


def _digest(said: bytes) -> bytes:
    return blake2b(said, digest_size=16).digest()


def _texts(value: bytes) -> Iterator[bytes]:
    """The texts of a message; what is none, as JSON."""
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
    return b"".join(_texts(body[part.start:part.end]))


def role_of(body: bytes, part: Part) -> str:
    """The role of a message; a Responses item without one counts as the assistant's. "" where there is no telling."""
    block = part.block
    if block.role is None:
        block.role, words = blocks.role_and_words(body[part.start:part.end])
        if words is not None and block.role == "user" and block.size <= _LONG:  # it opens a conversation, most likely
            block.said = _digest(words + b"\0")
    return block.role
