"""The journal: on disk before `settle` returns, recovered once, gone when the database has it."""
from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.ledger import journal as module
from gateway.ledger import spool
from gateway.ledger.journal import Durability, Journal, JournalError, Room
from tests.ledger.generate import backlog, entry


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_settled_entries_are_recovered_by_the_next_process(tmp_path: Path, durability: Durability) -> None:
    """Also while the files of the one before are still there, and until the database has them."""
    first = Journal(tmp_path, durability)
    await asyncio.gather(*(first.settle(entry(id=f"a-{n}")) for n in range(20)))
    first.close()
    for _ in range(2):      # the second time: recovery itself died before projecting
        again = Journal(tmp_path)
        assert {e.id for e in again.recover()} == {f"a-{n}" for n in range(20)}
        assert again.recover() == []
        again.close()
    last = Journal(tmp_path)
    last.projected([e.id for e in last.recover()])
    last.close()
    assert files(tmp_path) == []


async def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    """Workers share the folder; only the dead are recovered."""
    alive, other = Journal(tmp_path), Journal(tmp_path)
    await alive.settle(entry())
    assert other.recover() == []
    alive.projected(["a-1"])
    alive.close()
    other.close()


async def test_files_go_once_all_in_them_is_in_the_database(tmp_path: Path) -> None:
    """Oldest first; an attempt in flight keeps its file and those after it."""
    journal = Journal(tmp_path, "process", Room(2_000, 0))
    journal.open_attempt(entry(id="slow"))
    for n in range(10):
        await journal.settle(entry(id=f"a-{n}"))
    many = files(tmp_path).count(".journal")
    assert 2 < many <= module.CARRY_SEGMENTS
    assert journal.unprojected == 10
    journal.projected(f"a-{n}" for n in range(10))
    assert files(tmp_path).count(".journal") >= many
    await journal.settle(entry(id="slow"))
    assert backlog(journal) == ["slow"]
    journal.projected(["slow"])
    assert files(tmp_path) == [".journal", ".lock"]
    journal.close()
    assert files(tmp_path) == []


async def test_an_attempt_that_never_settled_is_an_orphan_of_the_next_process(tmp_path: Path) -> None:
    first = Journal(tmp_path, "process")
    first.open_attempt(entry(id="a-7", call_id="c-7"))
    first.progress("a-7", 256)
    first.close()
    second = Journal(tmp_path, "process")
    (orphan,) = second.recover()
    assert (orphan.call_id, orphan.status, orphan.tokens.output) == ("c-7", "orphaned", 256)
    second.projected(["a-7"])
    second.close()


async def test_a_damaged_end_is_reported_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is recovered; the torn file stays under another name."""
    first = Journal(tmp_path, "process")
    await first.settle(entry(id="a-1"))
    await first.settle(entry(id="a-2"))
    first.close()
    (path,) = tmp_path.glob("*.journal")
    path.write_bytes(path.read_bytes()[:-1])
    second = Journal(tmp_path, "process")
    assert [e.id for e in second.recover()] == ["a-1"]
    assert second.cuts[0].path == path
    assert "cannot be read" in caplog.text
    second.projected(["a-1"])
    second.close()
    assert files(tmp_path) == [".cut"]


def test_kill_9_loses_no_settled_entry(tmp_path: Path) -> None:
    """What a child said it had settled is there after it was killed in the middle of its work."""
    script = """
import asyncio, sys
from pathlib import Path
from gateway.ledger.journal import Journal
from tests.ledger.generate import entry
async def main():
    journal = Journal(Path(sys.argv[1]), "process")
    for n in range(1_000_000):
        journal.open_attempt(entry(id=f"a-{n}"))
        await journal.settle(entry(id=f"a-{n}"))
        print(f"a-{n}", flush=True)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert child.stdout is not None
        settled = [child.stdout.readline().strip() for _ in range(2_000)]
    finally:
        child.kill()
    settled += child.stdout.read().split()
    child.stdout.close()
    child.wait()
    journal = Journal(tmp_path, "process")
    recovered = journal.recover()
    assert set(settled) <= {e.id for e in recovered if e.status == "ok"}
    assert len(recovered) == len({e.id for e in recovered}) <= len(settled) + 1
    journal.projected(e.id for e in recovered)
    journal.close()


async def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is taken ahead: where the next file does not fit, the caller is told, and what stands in the others is whole."""
    journal = Journal(tmp_path, "process", Room(2_000, 0))

    def full(path: Path, size: int) -> int:
        raise OSError(28, "No space left on device")

    settled = 0
    with monkeypatch.context() as disk:
        disk.setattr(spool, "make", full)
        first = journal._segments[0]
        while first.size + 1_200 <= first.capacity:
            await journal.settle(entry(id=f"a-{settled}"))
            settled += 1
        with pytest.raises(JournalError, match="No space left"):
            await journal.settle(entry(id="too-much", error="x" * 1_200))
    assert settled > 0
    await journal.settle(entry(id="later"))
    ids = backlog(journal)
    assert ids == [*(f"a-{n}" for n in range(settled)), "later"]
    journal.projected(ids)
    journal.close()


async def test_a_failed_sync_is_not_repeated_on_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is written again to a new file; if that fails too, the caller is told."""
    journal = Journal(tmp_path, "power")
    real, broken = os.fdatasync, journal._segments[0].fd

    def sync(fd: int) -> None:
        if fd == broken:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(module.os, "fdatasync", sync)
    await journal.settle(entry(id="a-1"))
    assert len(list(tmp_path.glob("*.journal"))) == 2
    broken = journal._segments[-1].fd
    monkeypatch.setattr(module.os, "fdatasync", lambda fd: sync(broken))
    with pytest.raises(JournalError):
        await journal.settle(entry(id="a-2"))
    monkeypatch.setattr(module.os, "fdatasync", real)
    assert backlog(journal) == ["a-1", "a-2"]
    journal.close()


async def test_power_shares_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred settles at once do not take a hundred trips to the disk."""
    journal = Journal(tmp_path, "power")
    syncs = 0

    def sync(fd: int) -> None:
        nonlocal syncs
        syncs += 1

    monkeypatch.setattr(module.os, "fdatasync", sync)
    await asyncio.gather(*(journal.settle(entry(id=f"a-{n}")) for n in range(100)))
    assert syncs <= 3
    journal.close()


async def test_what_was_settled_between_two_places_is_read_back_in_pieces(tmp_path: Path) -> None:
    """Over the ends of files, without what was only opened, and past files that are gone because all of them is projected."""
    journal = Journal(tmp_path, "process", Room(segment_bytes=4_096, reserve_bytes=0))
    await journal.settle(entry(id="before"))
    start = journal.place
    for n in range(20):
        journal.open_attempt(entry(id=f"a-{n}"))
        await journal.settle(entry(id=f"a-{n}"))
    end = journal.place
    await journal.settle(entry(id="after"))
    assert end.number > start.number + 2
    found, pieces, at = [], 0, start
    while at is not None:
        entries, at = journal.settled_between(at, end, 3)
        assert len(entries) <= 3
        found += [e.id for e in entries]
        pieces += 1
    assert found == [f"a-{n}" for n in range(20)]
    assert pieces >= 7
    journal.projected(["before", *found[:12]])
    assert not journal._path(start.number).exists()
    left = [e.id for e in journal.settled_between(start, end, 100)[0]]
    assert left[-8:] == found[12:]
    assert len(left) < 20
    journal.projected([*found, "after"])
    journal.close()
