"""The write-ahead journal of one process: what happened, on disk before the answer's last byte leaves.

A folder may hold the journals of many processes, alive and dead. Each writer has its own files, `WRITER.NUMBER.journal`, and
holds a lock on `WRITER.lock` for as long as it lives; whoever can take that lock knows that the writer is dead and may recover
its files. Files go away oldest first, once all that stands in them is in the database. The surprise: `settle` returns once the
entry stands in a mapped file, which a kill -9 cannot undo; only `durability="power"` waits for the disk, many settles sharing
one fdatasync.
"""
from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from gateway.ledger import Entry
from gateway.ledger.records import VERSION, Cut, Head, Opened, Progress, Projected, Settled, frame, read_settled
from gateway.ledger.recovery import Wreck, read_wreck
from gateway.ledger.spool import JournalError, Room, Spool, sweep

__all__ = ["Durability", "Journal", "JournalError", "Place", "Room"]

Durability = Literal["process", "power"]
CARRY_SEGMENTS = 8
"""Attempts in flight pin their files; where more than this lie behind one, its OPEN records are written again at the end."""
_MAPPED_BYTES = 1 << 20

log = logging.getLogger("tollway.journal")


class Place(NamedTuple):
    """Between two records of a writer: the number of the file, and the bytes before it."""

    number: int
    offset: int


class _Segment:
    """One file and the attempts in it that are not yet in the database. Its bytes are on disk before it is used, and written
    through a mapping: that costs no system call, and what is in the mapping survives a kill -9 as a write(2) does. Pages
    that are full are unmapped: they are the kernel's to write, and no memory of ours."""

    __slots__ = ("_kept", "_map", "capacity", "fd", "path", "pending", "size")

    def __init__(self, path: Path, fd: int, head: Head, capacity: int) -> None:
        self.path, self.fd, self.capacity = path, fd, capacity
        self.size = self._kept = 0
        self.pending: set[str] = set()
        self._map = mmap.mmap(fd, capacity)
        self.write(frame(head))

    def write(self, data: bytes) -> None:
        end = self.size + len(data)
        self._map[self.size : end] = data
        self.size = end
        if end - self._kept > _MAPPED_BYTES:
            full = (end - self._kept) // _MAPPED_BYTES * _MAPPED_BYTES
            self._map.madvise(mmap.MADV_DONTNEED, self._kept, full)
            self._kept += full

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


class Journal:
    """One writer. Use from one event loop; `recover` once, before the first call is admitted."""

    def __init__(
        self, folder: Path, durability: Durability = "power", room: Room | None = None,
        price: Callable[[Entry], Entry] = lambda orphan: orphan,
    ) -> None:  # fmt: skip
        """`price` puts the cost on an attempt that was in flight when its writer died."""
        self.cuts: list[Cut] = []
        """Damaged ends found by `recover`; the files that had one are kept, renamed to `.cut`."""
        self.dead: list[str] = []
        """Writers that `recover` found dead."""
        self._folder, self._durability, self._room, self._price = folder, durability, room or Room(), price
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = f"{time.time_ns():016x}-{os.getpid()}"
        self._lock = _lock(folder / f"{self._writer}.lock")
        self._number = self._settled = self._marked = 0
        self._unprojected: dict[str, int] = {}  # entry id -> its number among this writer's SETTLE records
        self._opened: dict[str, bytes] = {}     # attempts in flight -> their OPEN record
        self.spool = Spool(folder, self._writer, self._room)
        self._segments = [self._new_segment()]
        self._wrecks: list[Wreck] = []
        self._sync = _GroupSync(self)

    # What the pipeline calls.

    def open_attempt(self, entry: Entry) -> None:
        """OPEN: before the request goes out. `entry`: as far as it is known, `tokens` an estimate of the input; recovery prices
        it. Raises `JournalError` if nothing new may be admitted."""
        if self.spool.refusal is not None:
            raise JournalError(self.spool.refusal)
        data = frame(Opened(entry))
        self._append(data).pending.add(entry.id)
        self._opened[entry.id] = data

    def progress(self, attempt_id: str, output_tokens: int) -> None:
        """PROG: every 256 tokens or every second of a stream."""
        self._append(frame(Progress(attempt_id, output_tokens)))

    async def settle(self, entry: Entry) -> None:
        """SETTLE: returns once the entry survives what `durability` says. Raises `JournalError`."""
        data, id = frame(Settled(entry)), entry.id
        segment = self._append(data)
        self._opened.pop(id, None)
        self._settled += 1
        self._unprojected[id] = self._settled
        segment.pending.add(id)
        if self._durability == "power":
            await self._sync.wait(data, segment)

    # What start-up and the projector call.

    def recover(self) -> list[Entry]:
        """Entries that dead writers left unprojected, attempts in flight at their death included as `orphaned`.

        Their files stay until `projected` has heard of each id, so a death during recovery loses nothing.
        """
        entries: list[Entry] = []
        for path in sorted(self._folder.glob("*.lock")):
            if path.stem == self._writer or any(path.stem == wreck.writer for wreck in self._wrecks):
                continue
            if (lock := _try_lock(path)) is None:
                continue                        # alive
            sweep(self._folder, path.stem)
            self.dead.append(path.stem)
            wreck = read_wreck(self._folder, path.stem, lock)
            wreck.orphans = [self._price(orphan) for orphan in wreck.orphans]
            self.cuts += wreck.cuts
            for cut in wreck.cuts:
                log.warning("journal %s: the last %d bytes, from %d on, cannot be read", cut.path.name, cut.lost, cut.offset)
            entries += wreck.entries
            self._wrecks.append(wreck)
        self.projected(())                      # wrecks with nothing left to say go at once
        return entries

    @property
    def place(self) -> Place:
        """Where the next record will stand."""
        return Place(self._number, self._segments[-1].size)

    def settled_between(self, start: Place, end: Place, most: int) -> tuple[list[Entry], Place | None]:
        """What was settled from one place to another, oldest first, at most so many, and where to go on; None if that were all.
        Reads the files, so in a thread; they are there for as long as the database does not have all of their entries."""
        entries: list[Entry] = []
        number, offset = start
        while (number, offset) < end:
            last = end.offset if number == end.number else None
            with contextlib.suppress(FileNotFoundError):
                found, behind = read_settled(self._path(number), offset, last, most - len(entries))
                entries += found
                if behind is not None:
                    return entries, Place(number, behind)
            number, offset = number + 1, 0
        return entries, None

    def projected(self, ids: Iterable[str]) -> None:
        """These entries are in the database: remember it, and delete the files that are no longer needed."""
        ids = set(ids)
        for id in ids:
            self._unprojected.pop(id, None)
        mark = next(iter(self._unprojected.values()), self._settled + 1) - 1
        if mark > self._marked:
            self._marked = mark
            self._append(frame(Projected(mark)))
        for segment in self._segments:
            segment.pending -= ids
        self._carry()
        self._drop_finished(ids)

    def lives(self, writer: str) -> bool:
        """Whether the process that writes under this name is alive."""
        lock = _try_lock(self._folder / f"{writer}.lock")
        if lock is not None:
            os.close(lock)
        return lock is None and (self._folder / f"{writer}.lock").exists()

    @property
    def writer(self) -> str:
        """The name of our files."""
        return self._writer

    @property
    def unprojected(self) -> int:
        """Entries settled here that the database does not have yet."""
        return len(self._unprojected)

    def close(self) -> None:
        """Files with nothing left to project are deleted; the others wait for the next start."""
        self._sync.close()
        self.spool.close()
        for segment in self._segments:
            os.ftruncate(segment.fd, segment.size)
            segment.close()
        if not any(segment.pending for segment in self._segments):
            for segment in self._segments:
                segment.path.unlink(missing_ok=True)
            (self._folder / f"{self._writer}.lock").unlink(missing_ok=True)
        for lock in (self._lock, *(wreck.lock for wreck in self._wrecks if wreck.lock is not None)):
            os.close(lock)
        self._wrecks.clear()

    def _append(self, data: bytes) -> _Segment:
        segment = self._segments[-1]
        if segment.size + len(data) > segment.capacity:
            segment = self.roll(len(data))
        segment.write(data)
        return segment

    def roll(self, room: int = 0) -> _Segment:
        """Start the next file, with room for a record of that many bytes. Raises `JournalError`, and nothing has changed."""
        self._segments.append(self._new_segment(room))
        return self._segments[-1]

    def _new_segment(self, room: int = 0) -> _Segment:
        path = self._path(self._number + 1)
        capacity = self._room.segment_bytes + (room if room > self._room.segment_bytes // 2 else 0)
        segment = _Segment(path, self.spool.take(path, capacity), Head(VERSION, self._writer, self._settled), capacity)
        self._number += 1
        if self._durability == "power":
            _sync_folder(self._folder)          # else a power cut may lose the file's name
        return segment

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._writer}.{number:08d}.journal"

    def _carry(self) -> None:
        """Lets old files go that only attempts in flight hold back: a stream of ten minutes must not keep gigabytes."""
        for segment in self._segments[:-CARRY_SEGMENTS]:
            if not segment.pending <= self._opened.keys():
                return                          # and those after it wait for it
            for id in segment.pending:
                self._append(self._opened[id])
                self._segments[-1].pending.add(id)
            segment.pending.clear()

    def _drop_finished(self, ids: set[str]) -> None:
        while len(self._segments) > 1 and not self._segments[0].pending:
            oldest = self._segments.pop(0)      # oldest first: a SETTLE never goes before its OPEN
            oldest.close()
            oldest.path.unlink(missing_ok=True)
        for wreck in self._wrecks:
            wreck.waiting -= ids
        for wreck in [wreck for wreck in self._wrecks if not wreck.waiting]:
            wreck.remove()
            self._wrecks.remove(wreck)


class _Waiter(NamedTuple):
    data: bytes
    segment: _Segment
    done: asyncio.Future[None]


class _GroupSync:
    """One fdatasync at a time, in a thread; all that settled while one ran share the next."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[_Waiter] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "journal-sync")

    async def wait(self, data: bytes, segment: _Segment) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiter(data, segment, done))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            failure: JournalError | None = None
            try:
                await self._commit(group)
            except (OSError, JournalError) as error:
                log.error("journal: fdatasync failed twice: %s", error)
                self._journal.spool.failed(error)
                failure = JournalError("the journal's disk does not take writes")
            for waiter in group:
                if not waiter.done.done():      # its call may have been cancelled
                    waiter.done.set_exception(failure) if failure else waiter.done.set_result(None)

    async def _commit(self, group: list[_Waiter]) -> None:
        loop = asyncio.get_running_loop()
        for segment in {id(waiter.segment): waiter.segment for waiter in group}.values():
            try:
                await loop.run_in_executor(self._thread, os.fdatasync, segment.fd)
            except OSError as error:            # never repeated on the same file: Linux may have dropped the pages
                log.warning("journal: fdatasync of %s failed (%s), writing again to a new file", segment.path.name, error)
                fresh = self._journal.roll(sum(len(waiter.data) for waiter in group))
                for waiter in group:
                    fresh.write(waiter.data)
                try:
                    await loop.run_in_executor(self._thread, os.fdatasync, fresh.fd)
                except OSError:
                    self._journal.roll()        # what settles next is not mixed with what may be lost
                    raise
                return

    def close(self) -> None:
        self._thread.shutdown()


def _lock(path: Path) -> int:
    """Take the lock before the name is there: a file that others can see is locked or its writer is dead."""
    unnamed = path.with_suffix(".new")
    fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(path)
    return fd


def _try_lock(path: Path) -> int | None:
    """None: it is held, so its writer lives, or it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
