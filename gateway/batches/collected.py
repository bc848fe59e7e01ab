"""A client that keeps its answer: who asked is not there any more."""
from __future__ import annotations

from gateway.relay import Client, Headers


class Collected(Client):
    """An answer that is kept."""

    __slots__ = ("body", "call_id", "retry_after_s", "status")

    def __init__(self) -> None:
        super().__init__()
        self.status, self.body, self.retry_after_s = 0, b"", 0.0

    def begin(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status

    def write(self, data: bytes) -> bool:
        self.body += data
        return True

    async def drained(self) -> None:
        return None

    async def end(self, data: bytes = b"") -> None:
        self.ended, self.body = True, self.body + data

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.begin(status, headers)
        told = dict(headers).get(b"retry-after", b"0")
        self.retry_after_s = float(told) if told.isdigit() else 0.0
        await self.end(body)
