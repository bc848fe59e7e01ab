"""A JSON body's places and edits in place: what is not edited stays byte for byte as it came.

`spans` finds where each top-level value stands without decoding it: msgspec validates and skips the values, and the
offsets are walked from their lengths. Duplicate keys are refused, since we would read one value and the backend the
other. Whether the values are UTF-8 and within limits is another question (`limits.py`).
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.core.errors import BadRequest
from gateway.dialects import limits
from gateway.dialects.limits import InvalidJson, TooDeep, TooMany

Span = tuple[int, int]
Spans = Mapping[str, Span]
Edit = tuple[int, int, bytes]
Element = tuple[int, int, bytes]
"""Start, end and what stands there."""

MAX_KEY_BYTES = 512
_LONG_KEY = MAX_KEY_BYTES // 4
"""Characters; a shorter one cannot have too many bytes."""
_PIECE_BYTES = 64 * 1024
_KEY = re.compile(rb'[\s,]*+"(?:[^"\\]++|\\.)*+"[\s:]*+', re.DOTALL)    # lax, for what it meets is valid JSON already
_GAP = re.compile(rb"[\s,]*")
_GAPS = b", \n\t\r"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_SCALAR = re.compile(_KEY.pattern + rb'("(?:[^"\\]++|\\.)*+"|[^\s,\[\]{}"]+)', re.DOTALL)
"""A key and the scalar behind it."""
_key, _scalar = _KEY.match, _SCALAR.match
_spread = msgspec.json.Decoder(dict[str, list[msgspec.Raw] | dict[str, msgspec.Raw] | str | int | float | bool | None])


class DuplicateKey(BadRequest):
    code = "duplicate_key"


def checked(body: bytes) -> dict[str, Span]:
    """`spans` of a whole body that is UTF-8 and within limits all through."""
    places = spans(body)
    limits.check_text(body)
    limits.check_shape(body, 0)
    return places


def spans(body: bytes, start: int = 0, end: int | None = None, *, where: str | None = None) -> dict[str, Span]:
    """Key -> place of its value in `body`, for the object that stands at start:end. `where` names it in errors."""
    end = len(body) if end is None else end
    part = body if end - start == len(body) else memoryview(body)[start:end]
    try:
        raws = _members.decode(part)
    except msgspec.ValidationError:
        raise InvalidJson(f"{where or 'The request body'} must be a JSON object.", param=where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"{where or 'The request body'} is not valid JSON: {_reason(error)}", param=where) from None
    except RecursionError:
        raise TooDeep(f"{where or 'The request body'} is nested too deeply.") from None
    if max(map(len, raws), default=0) > _LONG_KEY and any(len(key.encode()) > MAX_KEY_BYTES for key in raws):
        raise TooMany(f"A key of the request has more than {MAX_KEY_BYTES} bytes.")
    start = body.index(b"{", start)
    places = _walk(body, start, raws, where)
    if body[max([stop for _, stop in places.values()], default=start + 1):end].strip() != b"}":
        raise _duplicate(where)
    return places


class Spread(msgspec.Struct, frozen=True):
    """`spans` of a body, the elements of each list among its values, and the values: lists and objects of raw ones."""

    places: Spans
    lists: dict[str, list[Element]]
    values: Mapping[str, Any] | None
    """None: not decoded."""


def spread(body: bytes) -> Spread | None:
    """A body taken apart in one pass; None for what only `spans` can tell."""
    try:
        found: dict[str, Any] = _spread.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    places: dict[str, Span] = {}
    lists: dict[str, list[Element]] = {}
    position, long = body.index(b"{") + 1, len(body) > _PIECE_BYTES
    for key, value in found.items():
        kind = type(value)
        if len(key) > _LONG_KEY:
            return None
        if kind is list or kind is dict:
            member = _key(body, position)
            if member is None:
                return None
            begin = member.end()
            position = _end_of_list(body, begin, value, lists, key) if kind is list else _end_of_object(body, begin, value)
            if position < 0:
                return None
            places[key] = (begin, position)
        else:
            member = None if long and kind is str and len(value) > _PIECE_BYTES else _scalar(body, position)
            if member is None:
                return None
            places[key] = place = member.span(1)
            position = place[1]
    return Spread(places, lists, found) if body[position:].strip() == b"}" else None


def _end_of_list(body: bytes, begin: int, raws: list[msgspec.Raw], lists: dict[str, list[Element]], key: str) -> int:
    """Behind the list that stands at `begin`, whose elements are noted; -1: it is another one."""
    listed = lists[key] = _listed(body, begin, raws)
    if len(listed) != len(raws):
        return -1
    end = listed[-1][1] if listed else begin + 1
    return end + 1 if body.startswith(b"]", end) else _closed(body, end, b"]")


def _end_of_object(body: bytes, begin: int, raws: Mapping[str, msgspec.Raw]) -> int:
    """Behind the object that stands at `begin`; -1: it is another one."""
    if not body.startswith(b"{", begin):
        return -1
    try:
        inside = _walk(body, begin, raws, None)
    except DuplicateKey:
        return -1
    return _closed(body, max([end for _, end in inside.values()], default=begin + 1), b"}")


def _closed(body: bytes, position: int, bracket: bytes) -> int:
    """Behind the closing bracket that comes next; -1: something else does."""
    gap = _GAP.match(body, position)
    position = gap.end() if gap else position
    return position + 1 if body.startswith(bracket, position) else -1


def items(body: bytes, start: int, end: int) -> list[Span]:
    """Places of the elements of the array at start:end; anything but an array has none."""
    return [(begin, stop) for begin, stop, _ in elements(body, start, end)]


def elements(body: bytes, start: int, end: int) -> list[Element]:
    """`items`, each with its bytes."""
    if body[start:start + 1] != b"[":
        return []
    return _listed(body, start, _elements.decode(memoryview(body)[start:end]))


def _listed(body: bytes, start: int, raws: list[msgspec.Raw]) -> list[Element]:
    """The elements of the array that begins at `start`, up to the first that does not stand there."""
    found: list[Element] = []  # `list[Element]()` would cost more than all the rest
    begin = start + 1
    if not body.startswith(b"[", start):
        return found
    for raw in raws:
        if body[begin] in _GAPS:
            begin += 1
            if body[begin] in _GAPS:
                begin += 1
                if body[begin] in _GAPS and (gap := _GAP.match(body, begin)):
                    begin = gap.end()
        value = bytes(raw)
        if not body.startswith(value, begin):
            break
        stop = begin + len(value)
        found.append((begin, stop, value))
        begin = stop
    return found


def splice(body: bytes, edits: Iterable[Edit]) -> bytes:
    """The body with each start:end replaced; edits must not overlap."""
    parts: list[bytes] = []
    done = 0
    for start, end, new in sorted(edits):
        parts += (body[done:start], new)
        done = end
    parts.append(body[done:])
    return b"".join(parts)


def change(body: bytes, places: Spans, fields: Mapping[str, bytes], remove: Iterable[str] = ()) -> bytes:
    """Set top-level fields (values are JSON text) in place, add new ones at the end, remove others."""
    edits: list[Edit] = [(*places[key], value) for key, value in fields.items() if key in places]
    new = [msgspec.json.encode(key) + b":" + value for key, value in fields.items() if key not in places]
    gone = [key for key in remove if key in places and key not in fields]
    if gone:
        edits += _removals(body, places, frozenset(gone))
    if new:
        last = body.rindex(b"}")
        comma = b"," if len(places) > len(gone) else b""
        edits.append((last, last, comma + b",".join(new)))
    return splice(body, edits) if edits else body


def _walk(body: bytes, start: int, raws: Mapping[str, msgspec.Raw], where: str | None) -> dict[str, Span]:
    """Where the members of the object that begins at `start` stand, as far as they are these."""
    places: dict[str, Span] = {}
    position = start + 1
    match = _KEY.match
    for key, raw in raws.items():
        found, value = match(body, position), memoryview(raw)
        if found is None or not _stands(body, begin := found.end(), value):
            raise _duplicate(where)
        position = begin + value.nbytes
        places[key] = (begin, position)
    return places


def _stands(body: bytes, at: int, value: memoryview) -> bool:
    """Whether `value` stands at that place; by pieces, for to copy megabytes is slow."""
    if value.nbytes <= _PIECE_BYTES:
        return body.startswith(bytes(value), at)
    pieces = range(0, value.nbytes, _PIECE_BYTES)
    return all([body.startswith(bytes(value[n : n + _PIECE_BYTES]), at + n) for n in pieces])


def _duplicate(where: str | None) -> DuplicateKey:
    return DuplicateKey(f"{where or 'The request body'} has a key twice.", param=where)


def _removals(body: bytes, places: Spans, gone: frozenset[str]) -> list[Edit]:
    """Edits that take out members, each with the one comma that has to go with it."""
    edits: list[Edit] = []
    position, kept = body.index(b"{") + 1, False
    order = list(places)
    for index, key in enumerate(order):
        begin, end = position, places[key][1]    # a member reaches from behind the one before it, comma included
        if key in gone:
            if not kept and index + 1 < len(order):    # nothing stays in front: the comma behind it goes instead
                found = _GAP.match(body, end)
                begin, end = _first_quote(body, begin), found.end() if found else end
            edits.append((begin, end, b""))
        else:
            kept = True
        position = end
    return edits


def _first_quote(body: bytes, position: int) -> int:
    return body.index(b'"', position)


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


def shifted(places: Spans, edits: Iterable[Edit]) -> dict[str, Span]:
    """The places after `edits`, each of which lies within one value; nothing is read again."""
    ordered = sorted((start, end, len(new) - (end - start)) for start, end, new in edits)
    moved = {}
    for key, (start, end) in places.items():
        before = sum(delta for _, last, delta in ordered if last <= start)
        within = sum(delta for first, last, delta in ordered if first >= start and last <= end)
        moved[key] = (start + before, end + before + within)
    return moved
