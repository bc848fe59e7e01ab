"""The journal's room: calls in flight settle when there is none left, new ones are refused, and it goes on by itself."""
from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger import spool
from gateway.ledger.journal import Journal, JournalError, Room
from tests.ledger.generate import backlog, entry
from tests.upstream import until

SMALL = Room(segment_bytes=16_384, reserve_bytes=4 * 16_384, most_bytes=2**30)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path, "process", SMALL)
    until(lambda: len(list(tmp_path.glob("*.spare"))) == 4, "the reserve")
    yield journal
    journal.close()


def full(path: Path, size: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_calls_in_flight_settle_in_the_reserve(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the reserve cannot be filled up nothing new is admitted; what was opened before still settles, and stays."""
    monkeypatch.setattr(spool, "TEND_S", 0.02)
    monkeypatch.setattr(spool, "make", full)
    for n in range(20):
        journal.open_attempt(entry(id=f"a-{n}"))
    for n in range(20):                         # about two files' worth
        await journal.settle(entry(id=f"a-{n}", error="x" * 1_500))
    until(lambda: journal.spool.refusal is not None, "the refusal")
    with pytest.raises(JournalError, match="No space left"):
        journal.open_attempt(entry(id="new"))
    assert backlog(journal) == [f"a-{n}" for n in range(20)]
    monkeypatch.undo()
    until(lambda: journal.spool.refusal is None, "room again")
    journal.open_attempt(entry(id="new"))
    await journal.settle(entry(id="new"))
    journal.projected([*(f"a-{n}" for n in range(20)), "new"])


async def test_the_reserve_has_an_end(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then whoever settles is told; nothing written before is touched."""
    monkeypatch.setattr(spool, "make", full)
    settled = []
    with pytest.raises(JournalError, match="No space left"):  # noqa: PT012
        for n in range(200):
            await journal.settle(entry(id=f"a-{n}", error="x" * 1_000))
            settled.append(f"a-{n}")
    assert len(settled) >= 5 * 9
    assert backlog(journal) == settled
    journal.projected(settled)


async def test_a_spool_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away for long stops admission before the disk is full; when it has caught up, calls are taken again."""
    monkeypatch.setattr(spool, "TEND_S", 0.02)
    journal = Journal(tmp_path, "process", Room(16_384, 4 * 16_384, most_bytes=100_000))
    for n in range(100):
        await journal.settle(entry(id=f"a-{n}", error="x" * 1_000))
    until(lambda: journal.spool.refusal is not None, "the bound")
    with pytest.raises(JournalError, match="journal_max_mib"):
        journal.open_attempt(entry(id="new"))
    await journal.settle(entry(id="in flight"))
    journal.projected([*(f"a-{n}" for n in range(100)), "in flight"])
    until(lambda: journal.spool.refusal is None, "room again")
    journal.open_attempt(entry(id="new"))
    journal.projected(["new"])
    journal.close()


async def test_a_disk_that_does_not_sync_stops_admission_until_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settle is acknowledged that is not on the disk, the cause is named, and it goes on without a restart."""
    monkeypatch.setattr(spool, "TEND_S", 0.02)
    journal, real = Journal(tmp_path, "power", SMALL), os.fdatasync

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", broken)
        acknowledged = await asyncio.gather(*(journal.settle(entry(id=f"a-{n}")) for n in range(5)), return_exceptions=True)
        assert all(isinstance(one, JournalError) for one in acknowledged)
        until(lambda: "Input/output error" in (journal.spool.refusal or ""), "the cause")
        with pytest.raises(JournalError, match="Input/output error"):
            journal.open_attempt(entry(id="new"))
    assert os.fdatasync is real
    until(lambda: journal.spool.refusal is None, "the disk again")
    await journal.settle(entry(id="b"))
    ids = backlog(journal)
    assert ids == [*(f"a-{n}" for n in range(5)), "b"]
    journal.projected(ids)
    journal.close()


async def test_a_long_stream_does_not_keep_every_file(tmp_path: Path) -> None:
    """What an attempt in flight pins is its own record, written again at the end; a death still books it."""
    journal = Journal(tmp_path, "process", SMALL)
    journal.open_attempt(entry(id="slow", team="search"))
    for n in range(400):
        await journal.settle(entry(id=f"a-{n}", error="x" * 1_000))
        journal.projected([f"a-{n}"])
    assert len(list(tmp_path.glob("*.journal"))) <= 10
    journal.close()
    again = Journal(tmp_path, "process", SMALL)
    (orphan,) = again.recover()
    assert (orphan.id, orphan.team, orphan.status) == ("slow", "search", "orphaned")
    again.projected(["slow"])
    again.close()


async def test_what_the_dead_had_set_aside_is_freed(tmp_path: Path) -> None:
    """Spare files of a killed process go with the first recovery."""
    for name in ("w.00000001.spare", "w.probe"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "w.lock").write_bytes(b"")
    journal = Journal(tmp_path, "process", SMALL)
    journal.recover()
    assert not list(tmp_path.glob("w.*"))
    journal.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_real_disk_that_fills_up(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18 in small: a file system of 512 KiB, filled by somebody else, then freed."""
    monkeypatch.setattr(spool, "TEND_S", 0.02)
    journal, ballast = Journal(disk, "power", SMALL), disk / "ballast"
    until(lambda: len(list(disk.glob("*.spare"))) == 4, "the reserve")
    with pytest.raises(OSError), ballast.open("wb") as out:  # noqa: PT012
        while True:
            out.write(bytes(4096))
            out.flush()
    for n in range(20):
        journal.open_attempt(entry(id=f"a-{n}")) if journal.spool.refusal is None else None
        await journal.settle(entry(id=f"a-{n}", error="x" * 1_500))
    until(lambda: journal.spool.refusal is not None, "the refusal")
    ballast.unlink()
    until(lambda: journal.spool.refusal is None, "room again")
    assert backlog(journal) == [f"a-{n}" for n in range(20)]
    journal.projected(f"a-{n}" for n in range(20))
    journal.close()
