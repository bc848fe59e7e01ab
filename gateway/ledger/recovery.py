"""What a writer left behind: its settled entries, and the attempts it died with, turned into entries that say so."""
from __future__ import annotations

import gc
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gateway.ledger import Entry
from gateway.ledger.records import VERSION, Cut, Head, Opened, Progress, Projected, Record, Settled, read

log = logging.getLogger("tollway.journal")

@dataclass(slots=True)
class Wreck:
    """The files of one writer. `waiting`: ids that the database must confirm before they may go."""

    folder: Path
    writer: str
    lock: int | None
    paths: list[Path]
    cuts: list[Cut] = field(default_factory=list)
    settled: list[Entry] = field(default_factory=list)
    """Settled and not marked as projected, oldest first."""
    orphans: list[Entry] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)

    @property
    def entries(self) -> list[Entry]:
        return self.settled + self.orphans

    def remove(self) -> None:
        """Delete the files; one with an unreadable end is kept under another name, for whoever wants to look."""
        damaged = {cut.path for cut in self.cuts}
        for path in self.paths:
            if path in damaged:
                path.rename(path.with_suffix(".cut"))
            else:
                path.unlink(missing_ok=True)
        (self.folder / f"{self.writer}.lock").unlink(missing_ok=True)
        if self.lock is not None:
            os.close(self.lock)


def read_wreck(folder: Path, writer: str, lock: int | None = None) -> Wreck:
    wreck = Wreck(folder, writer, lock, sorted(folder.glob(f"{writer}.*.journal")))
    tally = _Tally()
    collects = gc.isenabled()
    gc.disable()                # a hundred thousand entries are no garbage, and looking through them takes half of the time
    try:
        _read_files(wreck, tally)
    finally:
        if collects:
            gc.enable()
    wreck.settled = [entry for number, entry in tally.settled.values() if number > tally.projected]
    orphans = [opened.entry for id, opened in tally.opened.items() if id not in tally.settled]
    wreck.orphans = [_orphan(entry, tally.output.get(entry.id, 0)) for entry in orphans]
    wreck.waiting = {entry.id for entry in wreck.entries}
    return wreck


def _read_files(wreck: Wreck, tally: _Tally) -> None:
    for path in wreck.paths:
        records, cut = read(path)
        if records and not (isinstance(records[0], Head) and records[0].version == VERSION):
            records, cut = [], Cut(path, 0, path.stat().st_size)
        if cut is not None:
            wreck.cuts.append(cut)
        for record in records:
            tally.add(record)


@dataclass(slots=True)
class _Tally:
    opened: dict[str, Opened] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)
    settled: dict[str, tuple[int, Entry]] = field(default_factory=dict)
    count: int = 0
    projected: int = 0

    def add(self, record: Record) -> None:
        match record:
            case Head():
                self.count = record.settled
            case Opened():
                self.opened[record.entry.id] = record
            case Progress():
                self.output[record.attempt_id] = record.output_tokens
            case Settled():
                self.count += 1
                self.settled[record.entry.id] = (self.count, record.entry)
            case Projected():
                self.projected = record.settled


def _orphan(entry: Entry, output: int) -> Entry:
    return replace(entry, status="orphaned", tokens_from="estimate", tokens=replace(entry.tokens, output=output))
