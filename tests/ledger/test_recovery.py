"""What a dead writer left: settled entries as they were, attempts in flight as orphans."""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.core.usage import TokenUsage
from gateway.ledger.records import FRAME, VERSION, Head, Opened, Progress, Projected, Record, Settled, frame
from gateway.ledger.recovery import read_wreck
from tests.ledger.generate import entry

OPEN = entry(
    id="a-9", call_id="c-9", attempt=2, team="search", status="orphaned", tokens=TokenUsage(uncached=1_000),
)


def leave(folder: Path, *records: Record, number: int = 1, settled: int = 0) -> None:
    (folder / f"w.{number:08d}.journal").write_bytes(b"".join(map(frame, (Head(VERSION, "w", settled), *records))))


def ids(entries: Sequence[object]) -> list[str]:
    return [entry.id for entry in entries]  # type: ignore[attr-defined]


def test_an_attempt_in_flight_is_booked_as_an_orphan_at_its_last_progress(tmp_path: Path) -> None:
    """Input as estimated at OPEN, output as last counted."""
    leave(tmp_path, Opened(OPEN), Progress("a-9", 256), Progress("a-9", 512))
    (orphan,) = read_wreck(tmp_path, "w").orphans
    assert (orphan.id, orphan.call_id, orphan.attempt, orphan.team) == ("a-9", "c-9", 2, "search")
    assert (orphan.status, orphan.tokens_from) == ("orphaned", "estimate")
    assert orphan.tokens == TokenUsage(uncached=1_000, output=512)


def test_a_record_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """Its OPEN had one member more."""
    payload = msgspec.msgpack.encode([1, OPEN, 800_000])
    older = FRAME.pack(len(payload), zlib.crc32(payload)) + payload
    (tmp_path / "w.00000001.journal").write_bytes(frame(Head(VERSION, "w", 0)) + older)
    assert ids(read_wreck(tmp_path, "w").orphans) == ["a-9"]


def test_what_is_marked_as_projected_is_not_given_again(tmp_path: Path) -> None:
    """The mark counts settle records over all files of the writer, those already deleted included."""
    leave(tmp_path, Settled(entry(id="a-8")), Projected(8), number=3, settled=7)
    leave(tmp_path, Settled(entry(id="a-9")), Settled(entry(id="a-10")), Projected(9), number=4, settled=8)
    assert ids(read_wreck(tmp_path, "w").settled) == ["a-10"]


def test_damage_in_one_file_does_not_hide_the_next(tmp_path: Path) -> None:
    """After a failed sync the writer goes on in a new file."""
    leave(tmp_path, Settled(entry(id="a-1")), Settled(entry(id="a-2")))
    first = tmp_path / "w.00000001.journal"
    first.write_bytes(first.read_bytes()[:-3])
    leave(tmp_path, Settled(entry(id="a-2")), number=2, settled=2)
    wreck = read_wreck(tmp_path, "w")
    assert ids(wreck.settled) == ["a-1", "a-2"]
    assert [cut.path for cut in wreck.cuts] == [first]


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """It is reported and kept."""
    path = tmp_path / "w.00000001.journal"
    path.write_bytes(frame(Head(VERSION + 1, "w", 0)) + frame(Settled(entry())))
    wreck = read_wreck(tmp_path, "w")
    assert wreck.entries == []
    wreck.remove()
    assert [p.name for p in tmp_path.iterdir()] == ["w.00000001.cut"]
