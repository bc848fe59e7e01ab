"""Power cuts on a simulated disk: what was synced stays, of what was not any part may be there (C2).

`TOLLWAY_POWER_CALLS=1000` makes it that long, and prints its figures with `-s`.
"""
from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.ledger.journal import Journal, Room
from tests.ledger.generate import entry

CALLS = int(os.environ.get("TOLLWAY_POWER_CALLS", 120))
SECTOR = 512
SMALL = Room(segment_bytes=1 << 16, reserve_bytes=1 << 17)
pytestmark = pytest.mark.timeout(300 + CALLS)


class Disk:
    """A folder whose unsynced writes, names and removals may or may not have reached the disk."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self._chance = folder, chance
        self._real_fdatasync, self._real_fsync = os.fdatasync, os.fsync
        self._content: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self.at_sync: Callable[[], None] = lambda: None

    def has_all(self) -> None:
        """What is in the folder now is on the disk."""
        self._names = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        self._content = {path.stat().st_ino: path.read_bytes() for path in self.folder.iterdir()}

    def fdatasync(self, fd: int) -> None:
        self.at_sync()
        self._content[os.fstat(fd).st_ino] = os.pread(fd, 1 << 24, 0)
        self.at_sync()

    def fsync(self, fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")) == self.folder:
            self._names = {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def cut(self, into: Path) -> None:
        """The folder as it may be after the power went now."""
        into.mkdir()
        now = {path.name: path for path in self.folder.iterdir()}
        for name in {*self._names, *now}:
            path = now.get(name)
            there = path is not None and path.exists()
            inode = path.stat().st_ino if path is not None and there else self._names.get(name, 0)
            if (self._names.get(name) == inode and there) or self._chance.random() < 0.5:
                (into / name).write_bytes(self._torn(self._content.get(inode, b""), path.read_bytes() if path is not None and there else b""))

    def _torn(self, synced: bytes, now: bytes) -> bytes:
        if self._chance.random() < 0.2:
            return synced
        length = max(len(synced), len(now))
        parts = []
        for at in range(0, length, SECTOR):
            old, new = synced[at : at + SECTOR], now[at : at + SECTOR]
            parts.append((new or old) if old == new or self._chance.random() < 0.5 else old.ljust(len(new), b"\0"))
        return b"".join(parts)


@pytest.mark.parametrize("seed", range(3))
async def test_a_power_cut_loses_no_answered_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """At every sync, before and after it: each entry whose settle had returned is read back or in the database."""
    chance = random.Random(seed)
    folder = tmp_path / "journal"
    disk = Disk(folder, chance)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    journal = Journal(folder, "power", SMALL)
    answered, database, cuts = set[str](), set[str](), list[tuple[Path, set[str]]]()

    def at_sync() -> None:
        if chance.random() < 0.5:
            before, place = set(answered), tmp_path / f"cut-{len(cuts)}"
            disk.cut(place)     # calls go on meanwhile: what the database has by its end need not be in the journal
            cuts.append((place, before - database))

    disk.at_sync = at_sync

    async def call(n: int) -> None:
        booked = entry(id=f"a-{n}", call_id=f"c-{n}")
        journal.open_attempt(booked)
        await asyncio.sleep(chance.random() * 0.01)
        await journal.settle(booked)
        answered.add(booked.id)
        if n % 20 == 0:                         # the database has them, and does not forget
            taken = set(answered)
            database.update(taken)
            journal.projected(taken)

    for start in range(0, CALLS, 8):
        await asyncio.gather(*(call(n) for n in range(start, min(start + 8, CALLS))))
    disk.at_sync = lambda: None
    journal.close()
    monkeypatch.undo()
    for place, safe in cuts:
        found = Journal(place, "process", SMALL)
        recovered = {e.id for e in found.recover()}
        found.close()
        assert safe <= recovered, f"seed {seed}, {place.name}: {sorted(safe - recovered)} lost"
    assert len(cuts) > CALLS // 20
    print("\nC2", {"calls": CALLS, "cut points": len(cuts), "lost": 0})
