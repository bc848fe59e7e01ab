"""What is kept of a part of a prompt so that a later one can be compared with it: digests and piece hashes, no text.

Two bytes a piece of some thirty: where two parts begin to differ, and where they are the same again, is found by their
pieces; what kind of difference it is, by which of the digests still agree.
"""
from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

import msgspec
import orjson

_SHORT, _GROUP = 48, 16
_BREATH, _AT_ONCE = 64, 64 * 1024
"""Pieces, and bytes, from one `pause` to the next: a fraction of a millisecond."""
_SAMPLE = 8_192
_VARYING = b"0123456789abcdefABCDEF-:.+TZ"
_BLANK = b" \t\r\n"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


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


class Looked(NamedTuple):
    """A part as it is now, with its own bytes."""

    outline: Outline
    pieces: list[bytes]
    hashes: Sequence[int]
    """Of the pieces."""


def look(value: bytes, pause: Callable[[], None] = no_pause) -> Looked:
    """O(bytes), some 40 ms a megabyte. `pause` is called on the way, for nothing here may keep the interpreter for long."""
    form = _form(value, pause)
    plain = form
    if not form.isascii():
        plain = b"".join([_composed(piece) for piece in _paused(_slices(form), pause)])
    words, frame = blake2b(digest_size=8), blake2b(digest_size=8)
    for piece in _paused(_slices(form), pause):
        words.update(piece.replace(b"\\n", b"").replace(b"\\t", b"").replace(b"\\r", b"").translate(None, _BLANK))
    for piece in _paused(_slices(value), pause):
        frame.update(piece.translate(None, _VARYING))
    found, hashes = list[bytes](), array("H")
    for piece in pieces(value):
        found.append(piece)
        hashes.append(crc32(piece) & 0xFFFF)
        if not len(found) % _BREATH:
            pause()
    return Looked(Outline(_digest(form), _digest(plain), words.digest(), frame.digest(), hashes.tobytes()), found, hashes)


def outline(value: bytes, pause: Callable[[], None] = no_pause) -> Outline:
    """What is kept of a part; see `look`."""
    return look(value, pause).outline


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


def same_ends(old: bytes, new: Sequence[int]) -> tuple[int, int]:
    """How many pieces agree at the start, and at the end of what is left."""
    known = array("H")
    known.frombytes(old)
    most = min(len(known), len(new))
    start = _last_that(lambda n: known[:n] == new[:n], most)
    return start, _last_that(lambda n: not n or known[-n:] == new[-n:], most - start)


def _last_that(holds: Callable[[int], bool], most: int) -> int:
    """The greatest number up to `most` for which it holds, as it does for all before."""
    return bisect(range(1, most + 1), 0, key=lambda n: not holds(n))


def likeness(one: bytes, other: bytes) -> float:
    """Share of pieces that two parts have in common, 0 to 1; of long ones by a sample, the same pieces of both."""
    a, b = array("H"), array("H")
    a.frombytes(one)
    b.frombytes(other)
    step = max(len(a), len(b)) // _SAMPLE + 1
    some, others = {n for n in a if not n % step}, {n for n in b if not n % step}
    return len(some & others) / max(len(some), len(others), 1)


def _form(value: bytes, pause: Callable[[], None]) -> bytes:
    """The JSON value in one way of writing it, its keys in order; as it is where it cannot be decoded."""
    try:
        if len(value) > _AT_ONCE:
            return _long_form(value, pause)
        return orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, msgspec.MsgspecError, UnicodeDecodeError):
        return value


def _long_form(value: bytes, pause: Callable[[], None]) -> bytes:
    """The same, but a little at a time."""
    if value.startswith(b'"'):
        texts = _paused(_slices(value[1:-1]), pause)
        return b'"%b"' % b"".join([orjson.dumps(orjson.loads(b'"%b"' % text))[1:-1] for text in texts])
    if value.startswith(b"{"):
        members = sorted(_members.decode(value).items())
        return b"{%b}" % b",".join([b"%b:%b" % (orjson.dumps(name), _form(bytes(raw), pause)) for name, raw in members])
    return b"[%b]" % b",".join([_form(bytes(raw), pause) for raw in _elements.decode(value)])


def _slices(value: bytes) -> Iterator[bytes]:
    """The value piece by piece. All but the first begin with a blank, so that no escape and no composed character is cut."""
    start = 0
    while start < len(value):
        end = value.find(b" ", start + _AT_ONCE)
        yield value[start : end if end > 0 else len(value)]
        start = end if end > 0 else len(value)


def _paused(found: Iterator[bytes], pause: Callable[[], None]) -> Iterator[bytes]:
    for piece in found:
        yield piece
        pause()


def _composed(piece: bytes) -> bytes:
    return unicodedata.normalize("NFC", piece.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()
