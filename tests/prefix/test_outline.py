"""Pieces are the text again, and find each other again behind a change."""
from __future__ import annotations

import json
import unicodedata
from array import array
from hashlib import blake2b
from zlib import crc32

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefix.outline import likeness, outline, pieces, same_ends

TEXT = st.lists(st.sampled_from(["word", "another", "longer-still", "\\n", " ", "  ", "x" * 60, "é"]), max_size=80).map(" ".join)


@given(TEXT)
def test_pieces_are_the_text_again(text: str) -> None:
    assert b"".join(pieces(text.encode())) == text.encode()


@given(TEXT, TEXT, st.sampled_from(["12:05", "0b6e2a5c", "a few words more"]))
def test_a_change_is_enclosed(before: str, behind: str, change: str) -> None:
    """What the pieces call the same at both ends is the same."""
    old, new = f"{before} x {behind}".encode(), f"{before} {change} {behind}".encode()
    cut = list(pieces(new))
    first, last = same_ends(outline(old).pieces, [crc32(piece) & 0xFFFF for piece in cut])
    assert old.startswith(b"".join(cut[:first]))
    assert old.endswith(b"".join(cut[len(cut) - last:]))


def test_digests_tell_kinds_of_change() -> None:
    def of(value: object, **how: int) -> tuple[bytes, bytes, bytes, bytes]:
        return outline(json.dumps(value, **how).encode())[:4]  # type: ignore[arg-type]

    base, spaced = of({"a": "x 1", "b": 2}), of({"b": 2, "a": "x 1"}, indent=1)
    assert base[0] == spaced[0]
    assert of("caf\u00e9")[0] != of("cafe\u0301")[0]
    assert of("caf\u00e9")[1] == of("cafe\u0301")[1]
    assert of("a  b\n")[2] == of("a b")[2]
    assert of("at 10:05")[3] == of("at 11:17")[3]


def test_likeness() -> None:
    one = outline(("line\\n" * 3 + "".join(f"rule {n}\\n" for n in range(20))).encode()).pieces
    other = outline(("line\\n" * 3 + "".join(f"rule {n}\\n" for n in range(1, 21))).encode()).pieces
    assert likeness(one, one) == 1.0
    assert likeness(one, other) > 0.8
    assert likeness(one, array("H").tobytes()) == 0.0


def test_a_long_part_is_left_off_now_and_then() -> None:
    """Whoever else needs the interpreter waits for a few pieces at most, and what comes of it is the same."""
    value = json.dumps({"role": "user", "content": " ".join(f"word {n}" for n in range(20_000))}).encode()
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    assert outline(value, pause) == outline(value)
    assert pauses > len(list(pieces(value))) // 100


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)), max_leaves=12,
)
WORDS = ["caf\u00e9", "cafe\u0301", "a  b", 'say "so"', "back\\slash", "\\n", "line\n", "\t", "\U0001f600", "\u2028", "x" * 90]
TALKATIVE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(lambda words: " ".join(words * 4_000))


@settings(max_examples=25, deadline=None)
@given(VALUES, TALKATIVE, st.booleans(), st.sampled_from([None, 1]))
def test_a_long_part_is_read_by_pieces_as_if_at_once(value: object, text: str, ascii: bool, indent: int | None) -> None:
    """Neither how long a part is, nor how its JSON is written, changes its digests."""
    part = {"b": [value, text], "a": text[::-1]}
    written = json.dumps(part, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    form = orjson.dumps(orjson.loads(written), option=orjson.OPT_SORT_KEYS)
    words = form.replace(b"\\n", b"").replace(b"\\t", b"").replace(b"\\r", b"").translate(None, b" \t\r\n")
    found = outline(written)
    assert found.form == _digest(form)
    assert found.plain == _digest(unicodedata.normalize("NFC", form.decode()).encode())
    assert found.words == _digest(words)
    assert found.frame == _digest(written.translate(None, b"0123456789abcdefABCDEF-:.+TZ"))


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()
