"""Pieces are the text again, and find each other again behind a change."""
from __future__ import annotations

import json
from array import array
from zlib import crc32

from hypothesis import given
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
