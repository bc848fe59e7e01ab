"""Keys that were used lately, on disk: with them a gateway can start and serve while PostgreSQL is away.

The file has what the database has of a key (digests under the pepper, never a secret), but only of those keys that may go on
without it (`keys.SEEN_US`). It is written when a key changes or is used for the first time, so a revocation is in it as soon as
it is known here, and every half minute. The workers of one machine share it: each adds what it saw.
"""
from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

from gateway.access.keys import SEEN_US, KeyRecord, KeyRing
from gateway.core import clock

EVERY_S = 30.0
_log = logging.getLogger("tollway.keys")


class _File(msgspec.Struct):
    records: list[KeyRecord]
    seen_us: dict[str, int]
    ahead_us: int = 0
    """What the database's clock was ahead of this machine's."""


class Remembered:
    """One file; `restore` at a start without a database, `save` from then on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes, self._saved_at = -1, float("-inf")
        self._saved: frozenset[str] = frozenset()

    @property
    def useful(self) -> bool:
        """Whether a key in it may still go on."""
        return bool(_recent(self._read()).seen_us)

    def restore(self, ring: KeyRing) -> int:
        """Puts what is remembered into the ring; how many keys may go on."""
        kept = self._read()
        clock.SHARED.correct(kept.ahead_us)
        found = _recent(kept)
        ring.put(*found.records)
        ring.was_seen(found.seen_us)
        return len(found.seen_us)

    def save(self, ring: KeyRing) -> None:
        """Writes, if there is something to write; a disk that does not take it costs only this."""
        now, recent = time.monotonic(), ring.recent(clock.now_us())
        if ring.changes == self._changes and recent.keys() <= self._saved and now - self._saved_at < EVERY_S:
            return
        self._changes, self._saved, self._saved_at = ring.changes, frozenset(recent), now
        before = _recent(self._read())
        seen_us = {**before.seen_us}
        for id, at_us in recent.items():
            seen_us[id] = max(at_us, seen_us.get(id, 0))
        known = {record.id: record for record in before.records}
        records = [record for id in seen_us if (record := ring.record(id) or known.get(id)) is not None]
        try:
            self._write(msgspec.json.encode(_File(records, seen_us, clock.SHARED.ahead_us)))
        except OSError as error:
            _log.warning("keys: what was used lately cannot be remembered in %s: %s", self._path.name, error.strerror)

    def _read(self) -> _File:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError):
            return _File([], {})

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        new.replace(self._path)


def _recent(file: _File) -> _File:
    now_us = clock.now_us()
    seen_us = {id: at_us for id, at_us in file.seen_us.items() if 0 <= now_us - at_us <= SEEN_US}
    return _File([record for record in file.records if record.id in seen_us], seen_us)
