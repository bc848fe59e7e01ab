"""Room for the journal: files allocated ahead, a bound on all of them together, and when nothing new may be admitted.

A few spare files lie beside the journal in use, their blocks already taken, so that calls in flight can settle when the disk is
full or the bound is reached; only new calls are refused then. A thread of its own fills the spares up, looks at the bound
and tries a broken disk again, once a second and whenever a spare was used; what it finds is in `refusal`, which costs the
path one attribute. It goes on by itself once there is room.
"""
from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

SEGMENT_BYTES = 16 * 1024 * 1024
TEND_S = 1.0

log = logging.getLogger("tollway.journal")


class JournalError(Exception):
    """The journal cannot be written: nothing new may be admitted."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much disk the journal takes. `reserve_bytes`: kept for calls in flight; `most_bytes`: of all journals in the folder
    together, beyond which new calls are refused until the database has taken some."""

    segment_bytes: int = SEGMENT_BYTES
    reserve_bytes: int = 4 * SEGMENT_BYTES
    most_bytes: int = 4 * 1024**3


class Spool:
    """The spare files of one writer. `take` from the loop's thread; the rest runs in the tender's."""

    def __init__(self, folder: Path, writer: str, room: Room) -> None:
        self.refusal: str | None = None
        """Why no new call may be admitted; None if it may."""
        self._folder, self._writer, self._room = folder, writer, room
        self._wanted = min(room.reserve_bytes // room.segment_bytes, 4)
        self._spares: deque[tuple[Path, int]] = deque()
        self._made = 0
        self._broken: str | None = None
        self._wake, self._stop = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="journal-spool", daemon=True)
        self._thread.start()

    def take(self, path: Path, capacity: int) -> int:
        """A file of that name, its blocks allocated: the descriptor. Raises `JournalError`, and there is no such file."""
        while capacity == self._room.segment_bytes and self._spares:
            spare, fd = self._spares.popleft()
            self._wake.set()
            try:
                spare.rename(path)
            except OSError:                     # somebody tidied the folder
                os.close(fd)
                continue
            return fd
        try:
            return make(path, capacity)
        except OSError as error:
            self._wake.set()
            raise JournalError(f"cannot write the journal: {error.strerror}") from error

    def failed(self, error: OSError | JournalError) -> None:
        """The disk did not take what had to be on it: refuse until it takes something again."""
        self._broken = self.refusal = f"the journal's disk does not take writes ({error})"
        self._wake.set()

    def tend(self) -> None:
        """Looks after the spares, the bound and a broken disk."""
        found = self._fill() or self._over() or self._still_broken()
        if found != self.refusal:
            if found:
                log.error("journal: no new call is taken: %s", found)
            else:
                log.warning("journal: there is room again, calls are taken")
            self.refusal = found

    def close(self) -> None:
        self._stop = True
        self._wake.set()
        self._thread.join()
        for spare, fd in self._spares:
            os.close(fd)
            spare.unlink(missing_ok=True)
        self._spares.clear()

    def _run(self) -> None:
        while not self._stop:
            self._wake.clear()
            try:
                self.tend()
            except OSError as error:
                self.refusal = f"the journal's folder cannot be used ({error.strerror})"
            self._wake.wait(TEND_S)

    def _fill(self) -> str | None:
        for lost in [one for one in list(self._spares) if not one[0].exists()]:
            with contextlib.suppress(ValueError):       # taken in this moment
                self._spares.remove(lost)
                os.close(lost[1])
        while len(self._spares) < self._wanted and not self._stop:
            self._made += 1
            path = self._folder / f"{self._writer}.{self._made:08d}.spare"
            try:
                self._spares.append((path, make(path, self._room.segment_bytes)))
            except OSError as error:
                return f"the journal's disk has no room for its reserve ({error.strerror})"
        return None

    def _over(self) -> str | None:
        taken = sum(_size(entry) for entry in os.scandir(self._folder) if entry.name.endswith(".journal"))
        if taken <= self._room.most_bytes:
            return None
        mib = self._room.most_bytes // 2**20
        return f"the journal holds all it may, {mib} MiB that the database has not taken yet (journal_max_mib)"

    def _still_broken(self) -> str | None:
        if self._broken is None:
            return None
        probe = self._folder / f"{self._writer}.probe"
        try:
            fd = make(probe, 4096)
            try:
                os.pwrite(fd, b"\1" * 4096, 0)
                os.fdatasync(fd)
            finally:
                os.close(fd)
                probe.unlink(missing_ok=True)
        except OSError as error:
            return f"the journal's disk does not take writes ({error.strerror})"
        self._broken = None
        return None


def make(path: Path, size: int) -> int:
    """A new file with its blocks allocated, so that no later write can find the disk full. Raises OSError, leaving none."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:                                   # macOS
            os.pwrite(fd, bytes(size), 0)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:                   # projected and deleted in this moment
        return 0


def sweep(folder: Path, writer: str) -> None:
    """Removes what a dead writer had set aside."""
    for path in (*folder.glob(f"{writer}.*.spare"), folder / f"{writer}.probe"):
        path.unlink(missing_ok=True)
