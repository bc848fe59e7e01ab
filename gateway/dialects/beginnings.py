"""Bodies that begin as one before them: a turn of a conversation is read from where it goes on.

An agent sends its whole conversation with every call. Where a body's bytes up to the end of a message are those of an earlier
body of its isolation domain, what was read of them then stands, and only the rest is taken apart. Bounded by bytes; what was
used longest ago goes.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.part import Part
from gateway.dialects.splice import Span, Spans, Spread, spread

MAX_BYTES = 16 * 1024 * 1024
_LEAST_BYTES, _MOST_BYTES = 8 * 1024, 1024 * 1024
"""Shorter bodies are read as fast anew; longer ones would push out all others."""
_KEY_BYTES, _MOST_ALIKE = 256, 4
_SPACE = b" \t\r\n"


class Beginning(msgspec.Struct, frozen=True, eq=False):
    """A body up to the end of an element of one of its lists."""

    text: bytes
    field: str
    """The list in whose midst it ends."""
    start: int
    """Where that list stands."""
    places: Spans
    """Of the members before it."""
    values: Mapping[str, Any]
    """Theirs; of a list or an object only whether there is something in it."""
    parts: Mapping[str, Sequence[Part]]
    """By field, those of the list included."""

    def rest(self, body: bytes) -> Spread | None:
        """What follows in a body that begins like this, places as they are in the body; None where that cannot be told."""
        rest = body[len(self.text):].lstrip(_SPACE)
        if rest.startswith(b","):
            rest = rest[1:].lstrip(_SPACE)
            if rest.startswith(b"]"):
                return None
        elif not rest.startswith(b"]"):
            return None
        opened = b'{"%b":[' % self.field.encode()
        found = spread(opened + rest)
        if found is None or found.values is None or not self.places.keys().isdisjoint(found.places):
            return None
        shift = len(body) - len(rest) - len(opened)
        places = {name: (start + shift, end + shift) for name, (start, end) in found.places.items()}
        places[self.field] = self.start, places[self.field][1]
        lists = {name: [(a + shift, b + shift, value) for a, b, value in each] for name, each in found.lists.items()}
        return Spread(places, lists, {**found.values, self.field: (self.parts[self.field] or found.values[self.field])})


class Beginnings:
    """One per process: what it holds are facts about bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.clear()
        self.resize(max_bytes)

    def resize(self, max_bytes: int) -> None:
        """0: nothing is kept."""
        self._most = max_bytes

    def clear(self) -> None:
        """Forgets all."""
        self._alike: dict[tuple[str, tuple[str, ...], bytes], list[Beginning]] = {}
        self._bytes = 0

    def find(self, domain: str, order: Sequence[str], body: bytes) -> Beginning | None:
        """The longest that this body begins with."""
        if len(body) < _LEAST_BYTES:
            return None
        key = domain, tuple(order), body[:_KEY_BYTES]
        alike, best = self._alike.pop(key, None), None
        if alike is None:
            return None
        self._alike[key] = alike
        for known in alike:
            if (best is None or len(known.text) > len(best.text)) and body.startswith(known.text):
                best = known
        return best

    def keep(
        self, domain: str, order: Sequence[str], body: bytes, places: Spans, values: Mapping[str, Any],
        parts: Mapping[str, Sequence[Part]], field: str, before: Beginning | None,
    ) -> None:
        """Remembers a body that has been read, up to its last but one element of `field`. `before`: what it began with, whose
        place it takes."""
        listed = parts[field]
        end = listed[-2].end if len(listed) > 2 else 0
        if not _LEAST_BYTES <= end <= min(_MOST_BYTES, self._most) or (before is not None and end <= len(before.text)):
            return
        first = dict[str, Span]()
        for name, place in places.items():
            if name == field:
                break
            first[name] = place
        kept = {name: parts.get(name, ()) for name in first} | {field: listed[:-1]}
        told = {name: _told(values[name]) for name in first if name in values}
        self._add(domain, order, Beginning(body[:end], field, places[field][0], first, told, kept), before)

    def _add(self, domain: str, order: Sequence[str], new: Beginning, before: Beginning | None) -> None:
        key = domain, tuple(order), new.text[:_KEY_BYTES]
        alike = self._alike.pop(key, [])
        others = [known for known in alike if known is not before]
        self._alike[key] = [*others[1 - _MOST_ALIKE :], new]
        self._bytes += _size(self._alike[key]) - _size(alike)
        while self._bytes > self._most:
            self._bytes -= _size(self._alike.pop(next(iter(self._alike))))


def _size(alike: Sequence[Beginning]) -> int:
    return sum(len(known.text) for known in alike)


def _told(value: Any) -> Any:
    """As much of a value as `facts.usual` looks at, without the bytes of the body in it."""
    if isinstance(value, list):
        return [None] if value else []
    return {} if isinstance(value, dict) else value


KNOWN = Beginnings()
