from __future__ import annotations

from typing import Any

import pytest

from gateway.core.usage import TokenUsage
from gateway.dialects.sse import Malformed
from gateway.dialects.watch import Kept, Seen, document_of, loads


def test_kept_frames_are_read_only_when_asked() -> None:
    """Nothing is decoded as it passes, and asking twice gives the same."""
    read: list[bytes] = []
    kept = Kept(lambda piece: read.append(piece) or [piece.decode()])    # type: ignore[func-returns-value]
    kept.add(b"a")
    kept.add(b"b")
    assert read == []
    assert kept.text() == kept.text() == "ab"
    assert read == [b"a", b"b"]


def test_memory_is_bounded_and_nothing_lost() -> None:
    """Past 1 MiB of frames the oldest become text in small bites."""
    kept = Kept(lambda piece: [piece[:1].decode()])
    for _ in range(300):
        kept.add(b"x" * 10_000)
        assert kept._size <= (1 << 20) + 10_000
    assert kept.text() == "x" * 300


@pytest.mark.parametrize(("choices", "finished", "complete"), [(1, set(), False), (1, {0}, True), (2, {0}, False), (2, {0, 1}, True)])
def test_complete(choices: int, finished: set[int], complete: bool) -> None:
    """All answers of a stream must have finished."""
    assert Seen(choices=choices, finished=finished).complete is complete


def test_observed() -> None:
    """Empty names are not said; a placeholder is marked as one."""
    seen = Seen(usage={"n": 1}, model="", provisional=True)
    found = seen.observed(lambda raw: TokenUsage(output=raw["n"]))
    assert (found.served_model, found.usage) == (None, TokenUsage(output=1, flags=("output_provisional",)))
    assert Seen().observed(lambda raw: TokenUsage()).usage is None


@pytest.mark.parametrize("raw", [b"", b"5", b"nope"])
def test_document_of(raw: bytes) -> None:
    """Only an object is an answer."""
    with pytest.raises(Malformed):
        document_of(raw)


@pytest.mark.parametrize(("raw", "value"), [
    (rb'{"a": "\ud83d"}', {"a": "\ufffd"}), (rb'["\ud83d\ude00", "x\uDE00"]', ["\U0001f600", "x\ufffd"]),
    (rb'["\\ud83d", "\ud83d"]', ["\\ud83d", "\ufffd"]), (rb'["\ud83d\n"]', ["\ufffd\n"]),
])  # fmt: skip
def test_half_a_character_does_not_cost_the_answer(raw: bytes, value: Any) -> None:
    """Backends send it that cut a text between two UTF-16 units; whole pairs and texts that only look like one stay."""
    assert loads(raw) == value


@pytest.mark.parametrize("raw", [b"{", rb'{"a": "\ud83d"', b"\\", rb'{"a":\ud800}'])
def test_what_is_no_json_stays_so(raw: bytes) -> None:
    with pytest.raises(ValueError):
        loads(raw)
