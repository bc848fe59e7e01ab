"""Batches in OpenAI's shape, served by a durable queue: `/v1/files` and `/v1/batches`, where `queue:` is set.

`book.py` keeps them on disk, `shared_book.py` in PostgreSQL, `desk.py` answers clients, `worker.py` decides which call goes
when, `handover.py` looks after what lies at providers, `jobs.py` speaks their batch APIs. Costs are in the ledger as ever.
"""

from __future__ import annotations

from gateway.batches.book import Book
from gateway.batches.desk import Desk, Pass
from gateway.batches.shared_book import PostgresBook
from gateway.batches.turn import FileTurn, PostgresTurn, Turn
from gateway.batches.worker import Worker
from gateway.core.call import Call
from gateway.holds import Holds
from gateway.pipeline import Pipeline
from gateway.relay import Client
from gateway.services import Services
from gateway.settings_file import QueueSettings

__all__ = ["Queue"]

_LOCK, _BOOK = "queue.lock", "queue.db"


class Queue:
    """The three together; works from its making on."""

    _book: Book

    def __init__(self, via: Services, pipeline: Pipeline, holds: Holds, limits: QueueSettings, passage: Pass) -> None:
        turn: Turn
        if limits.store == "database":
            self._book, turn = PostgresBook(via.settings.database_url), PostgresTurn(via.settings.database_url)
        else:
            self._book, turn = Book(via.settings.data / _BOOK), FileTurn(via.settings.data / _LOCK)
        self.worker = Worker(via, pipeline, holds, self._book, turn, limits)
        self._desk = Desk(self._book, limits, passage, self.worker.wake)
        self.worker.start()

    async def serve(self, call: Call, method: str, place: str, client: Client) -> None:
        await self._desk.serve(call, method, place, client)

    async def close(self) -> None:
        await self.worker.close()
        self._book.close()
