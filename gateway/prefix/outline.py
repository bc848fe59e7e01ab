"""What is kept of a part of a prompt so that a later one can be compared with it: digests and piece hashes, no text.

Two bytes a piece of some thirty: where two parts begin to differ, and where they are the same again, is found by their
pieces; what kind of difference it is, by which of the digests still agree.
"""
from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

import orjson

_SHORT, _GROUP = 48, 16
_BREATH = 64
"""Pieces from one `pause` to the next: a fraction of a millisecond."""
_VARYING = b"0123456789abcdefABCDEF-:.+TZ"
_BLANK = b" \t\r\n"


class Outline(NamedTuple):
    """`form`: the JSON value, `plain`: with Unicode composed, `words`: without blanks, `frame`: without digits and hex."""

    form: bytes
    plain: bytes
    words: bytes
    frame: bytes
    pieces: bytes

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return 4 * 41 + len(self.pieces) + 33 + 96


def part_id(value: bytes) -> int:
    """Names a part's bytes wherever they stand."""
    return int.from_bytes(blake2b(value, digest_size=8).digest()) >> 4


def no_pause() -> None:
    """For who has the interpreter to himself."""


def outline(value: bytes, pause: Callable[[], None] = no_pause) -> Outline:
    """O(bytes); made once for every part that was not seen before. `pause` is called on the way."""
    form = _form(value)
    plain = form
    if not form.isascii():
        plain = unicodedata.normalize("NFC", form.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")
    words = form.replace(b"\\n", b"").replace(b"\\t", b"").replace(b"\\r", b"").translate(None, _BLANK)
    hashes = array("H", [crc32(piece) & 0xFFFF for piece in cut(value, pause)])
    return Outline(_digest(form), _digest(plain), _digest(words), _digest(value.translate(None, _VARYING)), hashes.tobytes())


def pieces(value: bytes) -> Iterator[bytes]:
    """Lines, and long lines by groups of words whose ends hang on the words alone; joined they are the value again."""
    rest = value.split(b"\\n")
    last = len(rest) - 1
    for n, line in enumerate(rest):
        end = b"" if n == last else b"\\n"
        if len(line) <= _SHORT:
            yield line + end
            continue
        group: list[bytes] = []
        size = 0
        *words, ending = line.split(b" ")
        for word in words:
            group.append(word)
            size += len(word) + 1
            if size >= _GROUP and crc32(word) & 1:
                yield b" ".join(group) + b" "
                group, size = [], 0
        yield b" ".join([*group, ending]) + end


def cut(value: bytes, pause: Callable[[], None] = no_pause) -> list[bytes]:
    """All `pieces`, with a `pause` every few."""
    found: list[bytes] = []
    for piece in pieces(value):
        found.append(piece)
        if not len(found) % _BREATH:
            pause()
    return found


def same_ends(old: bytes, new: Sequence[int]) -> tuple[int, int]:
    """How many pieces agree at the start, and at the end of what is left."""
    known = array("H")
    known.frombytes(old)
    most = min(len(known), len(new))
    start = next((n for n in range(most) if known[n] != new[n]), most)
    end = 0
    while end < most - start and known[-1 - end] == new[-1 - end]:
        end += 1
    return start, end


def likeness(one: bytes, other: bytes) -> float:
    """Share of pieces that two parts have in common, 0 to 1."""
    a, b = array("H"), array("H")
    a.frombytes(one)
    b.frombytes(other)
    both = set(a) & set(b)
    return len(both) / max(len(set(a)), len(set(b)), 1)


def _form(value: bytes) -> bytes:
    try:
        return orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return value


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()
