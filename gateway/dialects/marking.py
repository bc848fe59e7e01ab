"""The client's own cache markers: keys that say where a cache entry should end. They are no part of what the model sees."""
from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge

MARKERS = (b'"cache_control"', b'"prompt_cache_breakpoint"')
_MARKER = re.compile(rb'(,\s*)?"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:null|\{[^{}]*\})(\s*,\s*)?')
_SPACE, _COMMA = b" \t\n\r\f\v", ord(",")


def marked(value: bytes) -> bool:
    """Whether the client has set a marker of its own in this part."""
    return MARKERS[0] in value or MARKERS[1] in value


def unmarked(value: bytes) -> bytes:
    """The same without the client's markers: what a cache compares."""
    pieces: list[bytes] = []
    done = 0
    for at in merge(*[_places(value, marker) for marker in MARKERS]):
        found = _MARKER.match(value, _with_comma(value, at, done)) if at >= done else None
        if found is not None:
            pieces += (value[done:found.start()], found[1] if found[1] and found[2] else b"")
            done = found.end()
    pieces.append(value[done:])
    return b"".join(pieces) if done else value


def _places(value: bytes, marker: bytes) -> Iterator[int]:
    at = value.find(marker)
    while at >= 0:
        yield at
        at = value.find(marker, at + 1)


def _with_comma(value: bytes, at: int, least: int) -> int:
    """Where the comma in front of a marker stands; the marker's own place where there is none."""
    before = at
    while before > least and value[before - 1] in _SPACE:
        before -= 1
    return before - 1 if before > least and value[before - 1] == _COMMA else at
