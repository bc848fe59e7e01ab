"""Frames on disk: what is whole is read, what is torn is cut."""
from __future__ import annotations

import struct
from pathlib import Path

from gateway.core.usage import TokenUsage
from gateway.ledger.records import VERSION, Cut, Head, Opened, Progress, Projected, Settled, frame, read
from tests.ledger.generate import entry

RECORDS = [
    Head(VERSION, "w", 0),
    Opened(entry(id="a-1")),
    Progress("a-1", 256),
    Settled(entry(tokens=TokenUsage(uncached=0, cache_write={"1h": 7}, flags=("odd",)), tags={"naïve": "日本"})),
    Projected(1),
    Settled(entry(id="a-2")),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Each kind of record comes back equal, None and 0 apart."""
    path = tmp_path / "f"
    path.write_bytes(b"".join(frame(record) for record in RECORDS))
    records, cut = read(path)
    assert cut is None
    assert records == RECORDS


def test_a_last_record_torn_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    """A crash in the middle of a write leaves every whole record readable and says what was lost."""
    path = tmp_path / "f"
    whole, last = b"".join(frame(record) for record in RECORDS[:-1]), frame(RECORDS[-1])
    for length in range(1, len(last)):
        path.write_bytes(whole + last[:length])
        records, cut = read(path)
        assert len(records) == len(RECORDS) - 1
        assert cut == Cut(path, len(whole), len(last[:length].rstrip(b"\0")))


def test_a_file_allocated_ahead_ends_where_its_records_end(tmp_path: Path) -> None:
    """The rest of the file is noughts, which is no damage."""
    path = tmp_path / "f"
    whole = b"".join(frame(record) for record in RECORDS)
    path.write_bytes(whole + bytes(4096))
    records, cut = read(path)
    assert (len(records), cut) == (len(RECORDS), None)


def test_a_flipped_byte_anywhere_in_the_last_record_is_noticed(tmp_path: Path) -> None:
    """A wrong length, checksum or payload is never taken for a record."""
    path = tmp_path / "f"
    whole, last = b"".join(frame(record) for record in RECORDS[:-1]), frame(RECORDS[-1])
    for at in range(len(last)):
        path.write_bytes(whole + last[:at] + bytes([last[at] ^ 0x55]) + last[at + 1 :])
        records, cut = read(path)
        assert len(records) == len(RECORDS) - 1
        assert cut is not None
        assert cut.offset == len(whole)


def test_an_absurd_length_allocates_nothing(tmp_path: Path) -> None:
    """Damage may claim any length."""
    path = tmp_path / "f"
    path.write_bytes(frame(RECORDS[0]) + struct.pack("<II", 0xFFFFFFFF, 0) + b"x" * 64)
    records, cut = read(path)
    assert records == [RECORDS[0]]
    assert cut is not None
    assert cut.lost == 72
