"""What waits, on disk: files, batches, their calls, and what was handed to a provider's batch API.

A SQLite file of its own in DATA, beside the ledger's: workers of one machine share it, so it has a rollback journal, not a
WAL. All methods block; the callers use a thread. Times are microseconds since the epoch, UTC.
"""
from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

State = Literal["waiting", "running", "sent", "done", "cancelled", "expired"]
_OPEN = "('waiting', 'running', 'sent')"
TABLES = """
CREATE TABLE IF NOT EXISTS files (
  id TEXT PRIMARY KEY, team TEXT, name TEXT, purpose TEXT, at_us INTEGER, content BLOB);
CREATE TABLE IF NOT EXISTS batches (
  id TEXT PRIMARY KEY, team TEXT, key_id TEXT, endpoint TEXT, input TEXT, at_us INTEGER, deadline_us INTEGER, status TEXT,
  ended_us INTEGER, output TEXT, errors TEXT, detail TEXT);
CREATE TABLE IF NOT EXISTS calls (
  batch TEXT, n INTEGER, custom_id TEXT, body BLOB, deadline_us INTEGER, state TEXT, not_before_us INTEGER, job TEXT,
  call_id TEXT, status INTEGER, answer BLOB, PRIMARY KEY (batch, n));
CREATE INDEX IF NOT EXISTS calls_next ON calls (state, deadline_us, batch, n);
CREATE INDEX IF NOT EXISTS calls_job ON calls (job);
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY, lane TEXT, at_us INTEGER, deadline_us INTEGER, provider_id TEXT, status TEXT, detail TEXT);
"""
"""In words that SQLite and PostgreSQL share (but for the names of two types)."""


class Stored(msgspec.Struct, frozen=True):
    """A file; its content is asked for apart."""

    id: str
    team: str
    name: str
    purpose: str
    at_us: int
    size: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a team. `status` is OpenAI's word."""

    id: str
    team: str
    key_id: str
    endpoint: str
    input: str
    at_us: int
    deadline_us: int
    status: str
    ended_us: int | None = None
    output: str | None = None
    errors: str | None = None
    detail: dict[str, Any] = {}
    """`window` as the client wrote it, `metadata`, the `class` of its calls, `who`: client, tags, run as in `Call`."""

    @property
    def window_s(self) -> float:
        return (self.deadline_us - self.at_us) / 1e6


class Line(msgspec.Struct, frozen=True):
    """One call of a batch."""

    batch: str
    n: int
    custom_id: str
    body: bytes
    deadline_us: int
    state: State
    not_before_us: int = 0
    job: str | None = None
    call_id: str | None = None
    status: int | None = None
    answer: bytes | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What was handed to a provider in one piece. `status`: `sending`, `sent`, `done`."""

    id: str
    lane: str
    at_us: int
    deadline_us: int
    provider_id: str | None
    status: str
    detail: dict[str, Any] = {}


class Book:
    """One connection, one caller at a time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(TABLES)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _change(self) -> Iterator[Any]:
        """A transaction, as a connection of sqlite3."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # files

    def put_file(self, id: str, team: str, name: str, purpose: str, at_us: int, content: bytes) -> None:
        with self._change() as db:
            db.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET content = excluded.content",
                (id, team, name, purpose, at_us, content),
            )

    def files(self, team: str, id: str | None = None) -> list[Stored]:
        """The team's, latest first, or the one of that id."""
        columns = "SELECT id, team, name, purpose, at_us, length(content) FROM files WHERE team = ?"
        if id is not None:
            return [Stored(*row) for row in self._rows(f"{columns} AND id = ?", (team, id))]
        return [Stored(*row) for row in self._rows(f"{columns} ORDER BY at_us DESC LIMIT 10000", (team,))]

    def content(self, team: str, id: str) -> bytes | None:
        found = self._rows("SELECT content FROM files WHERE team = ? AND id = ?", (team, id))
        return bytes(found[0][0]) if found else None

    def drop_file(self, team: str, id: str) -> None:
        with self._change() as db:
            db.execute("DELETE FROM files WHERE team = ? AND id = ?", (team, id))

    def size_bytes(self) -> int:
        (pages,), (page,) = self._rows("PRAGMA page_count")[0], self._rows("PRAGMA page_size")[0]
        (free,) = self._rows("PRAGMA freelist_count")[0]
        return int((pages - free) * page)

    # batches

    def put_batch(self, batch: Batch, calls: Iterable[tuple[str, bytes]], most: int) -> bool:
        """The batch with its calls (custom id, body). False, and nothing is kept, where more than `most` would wait."""
        rows = [
            (batch.id, n, custom_id, body, batch.deadline_us, "waiting", 0, None, None, None, None)
            for n, (custom_id, body) in enumerate(calls)
        ]  # fmt: skip
        with self._change() as db:
            (waiting,) = db.execute(f"SELECT count(*) FROM calls WHERE state IN {_OPEN}").fetchone()
            if waiting + len(rows) > most:
                return False
            fields = msgspec.structs.asdict(batch) | {"detail": json.dumps(batch.detail)}
            db.execute(f"INSERT INTO batches VALUES ({', '.join('?' * len(fields))})", tuple(fields.values()))
            db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return True

    def batches(self, where: str = "true", values: Sequence[Any] = ()) -> list[Batch]:
        """`where` is our own text, never a client's."""
        rows = self._rows(f"SELECT * FROM batches WHERE {where} ORDER BY at_us DESC, id DESC", values)
        return [Batch(**dict(zip(Batch.__struct_fields__, (*row[:-1], json.loads(row[-1])), strict=True))) for row in rows]

    def counts(self, batch: str) -> dict[str, int]:
        """Calls by state; `done` is told apart as `completed` (200) and `failed`."""
        rows = self._rows(
            "SELECT CASE WHEN state != 'done' THEN state WHEN status = 200 THEN 'completed' ELSE 'failed' END AS how, count(*) "
            "FROM calls WHERE batch = ? GROUP BY how",
            (batch,),
        )
        return dict(rows)

    def set_batch(self, id: str, was: Sequence[str], **fields: Any) -> bool:
        """Changes fields where the status is one of `was`."""
        sets, marks = ", ".join(f"{name} = ?" for name in fields), ", ".join("?" * len(was))
        with self._change() as db:
            done = db.execute(f"UPDATE batches SET {sets} WHERE id = ? AND status IN ({marks})", (*fields.values(), id, *was))
        return bool(done.rowcount == 1)

    # calls

    def next(self, now_us: int, most: int) -> list[Line]:
        """Calls that wait, the nearest deadline first, then in their order; and those of earlier batches first."""
        return self._lines("state = 'waiting' AND not_before_us <= ? ORDER BY deadline_us, batch, n LIMIT ?", (now_us, most))

    def of_batch(self, batch: str) -> list[Line]:
        return self._lines("batch = ? ORDER BY n", (batch,))

    def of_job(self, job: str) -> list[Line]:
        return self._lines("job = ? AND state = 'sent' ORDER BY batch, n", (job,))

    def _lines(self, where: str, values: Sequence[Any]) -> list[Line]:
        return [Line(*row) for row in self._rows(f"SELECT * FROM calls WHERE {where}", values)]

    def begin(self, lines: Sequence[Line], job: Job | None = None) -> list[Line]:
        """Takes waiting calls for an ordinary lane, or for a job; gives those that were still waiting."""
        state = "running" if job is None else "sent"
        taken = []
        with self._change() as db:
            for line in lines:
                done = db.execute(
                    "UPDATE calls SET state = ?, job = ? WHERE batch = ? AND n = ? AND state = 'waiting'",
                    (state, None if job is None else job.id, line.batch, line.n),
                )
                taken += [line] if done.rowcount else []
            if job is not None and taken:
                fields = msgspec.structs.asdict(job) | {"detail": json.dumps(job.detail)}
                db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(fields.values()))
        return taken

    def finish(self, line: Line, call_id: str | None, status: int, answer: bytes) -> None:
        with self._change() as db:
            db.execute(
                "UPDATE calls SET state = 'done', call_id = ?, status = ?, answer = ? WHERE batch = ? AND n = ?",
                (call_id, status, answer, line.batch, line.n),
            )

    def again(self, lines: Iterable[Line], not_before_us: int = 0) -> None:
        """Back into the queue."""
        with self._change() as db:
            db.executemany(
                "UPDATE calls SET state = 'waiting', job = NULL, not_before_us = ? WHERE batch = ? AND n = ?",
                [(not_before_us, line.batch, line.n) for line in lines],
            )

    def close_calls(self, batch: str, state: State) -> None:
        """Those that still wait will not be made."""
        with self._change() as db:
            db.execute("UPDATE calls SET state = ? WHERE batch = ? AND state = 'waiting'", (state, batch))

    def recover(self) -> int:
        """After a start: what was under way when the process died waits again."""
        with self._change() as db:
            return int(db.execute("UPDATE calls SET state = 'waiting' WHERE state = 'running'").rowcount)

    # jobs

    def jobs(self) -> list[Job]:
        rows = self._rows("SELECT * FROM jobs WHERE status != 'done' ORDER BY at_us, id")
        return [Job(**dict(zip(Job.__struct_fields__, (*row[:-1], json.loads(row[-1])), strict=True))) for row in rows]

    def set_job(self, id: str, **fields: Any) -> None:
        with self._change() as db:
            db.execute(f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in fields)} WHERE id = ?", (*fields.values(), id))

    def prune(self, before_us: int) -> None:
        """Forgets what ended before then, and files as old that no batch needs any more."""
        with self._change() as db:
            old = "SELECT id FROM batches WHERE ended_us < ?"
            db.execute(f"DELETE FROM calls WHERE batch IN ({old})", (before_us,))
            db.execute("DELETE FROM batches WHERE ended_us < ?", (before_us,))
            db.execute("DELETE FROM jobs WHERE status = 'done' AND at_us < ?", (before_us,))
            needed = "SELECT input FROM batches WHERE ended_us IS NULL"
            db.execute(f"DELETE FROM files WHERE at_us < ? AND id NOT IN ({needed})", (before_us,))
