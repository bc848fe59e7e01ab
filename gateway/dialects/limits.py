"""What no request may exceed, told of JSON that is known to be well formed: valid UTF-8, depth, elements.

A look at megabytes goes on in steps, since a single long one would hold up all other threads. Depth is bounded twice: chains
of more than 64 brackets are refused exactly; those with siblings on the way are let through up to what Python's own recursion
limit bears (some 900), because only a full scan could count them.
"""
from __future__ import annotations

import codecs
import re

from gateway.core.errors import BadRequest

MAX_DEPTH = 64
MAX_ITEMS = 20_000
FEWEST_BYTES = 2 * MAX_ITEMS
"""Shorter arrays and objects cannot have too many elements."""
_STEP_BYTES = 256 * 1024
_TEXT_STEP_BYTES = 32 * 1024
"""What is decoded at once: the processor's cache holds both forms of it."""
_SUSPECTS = (b"]" * 20, b"}" * 20, b"]}" * 10)
_MARK = re.compile(rb'["\[\]{},]')
_QUOTE, _BACKSLASH = b'"\\'


class InvalidJson(BadRequest):
    code = "invalid_json"


class TooDeep(BadRequest):
    code = "too_deep"


class TooMany(BadRequest):
    code = "too_many"


def too_many() -> TooMany:
    return TooMany(f"An array or object of the request has more than {MAX_ITEMS} elements.")


def check_text(value: bytes) -> None:
    """Raises `InvalidJson` for what is not UTF-8."""
    if value.isascii():
        return
    try:
        start = 0
        while start < len(value):
            end = _border(value, start + _TEXT_STEP_BYTES)
            codecs.utf_8_decode(value[start:end], "strict", True)
            start = end
    except UnicodeDecodeError:
        raise InvalidJson("The request body is not valid UTF-8.") from None


def _border(value: bytes, at: int) -> int:
    """The next border between characters; any place where there is none near, for that is not UTF-8."""
    for _ in range(3):
        if at < len(value) and value[at] & 0xC0 == 0x80:
            at += 1
    return at


def check_shape(value: bytes, outer: int) -> None:
    """Raises `TooDeep`, `TooMany`. `outer`: levels around the value."""
    brackets, braces, mixed = _SUSPECTS
    if brackets in value or braces in value or mixed in value or (len(value) >= FEWEST_BYTES and _many_commas(value)):
        _scan(value, outer)


def _many_commas(value: bytes) -> bool:
    found = 0
    for start in range(0, len(value), _STEP_BYTES):
        found += value.count(b",", start, start + _STEP_BYTES)
        if found >= MAX_ITEMS:
            return True
    return False


def _scan(value: bytes, outer: int) -> None:
    """Counts levels, and commas in each of them."""
    commas, position, end = [0], 0, len(value)
    while position < end:
        found = _MARK.search(value, position, position + _STEP_BYTES)
        if found is None:
            position += _STEP_BYTES
            continue
        position = found.end()
        mark = value[position - 1]
        if mark == _QUOTE:
            position = _string_end(value, position)
        elif mark in b"[{":
            commas.append(0)
            if len(commas) > MAX_DEPTH + 1 - outer:
                raise TooDeep(f"The request body is nested more than {MAX_DEPTH} levels deep.")
        elif mark in b"]}":
            commas.pop()
        else:
            commas[-1] += 1
            if commas[-1] >= MAX_ITEMS:
                raise too_many()


def _string_end(value: bytes, position: int) -> int:
    """Behind the quote that ends the string whose text begins at `position`."""
    while True:
        end = value.index(b'"', position)
        last = end - 1
        while value[last] == _BACKSLASH:
            last -= 1
        position = end + 1
        if (end - last) % 2:
            return position
