"""Sends the turns of sessions, one after another as an agent does, and notes how each ended; what they took the ledger says.

A session ends at its last turn, at the model's context limit, at any other error, or when it is told to stop.
"""
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.demo.sessions import Session

MODEL = "smollm2-135m-instruct"
AT_LIMIT = "context_length_exceeded"
_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""How long an answer may take is the gateway's to say."""


@dataclass(frozen=True, slots=True)
class Side:
    """A team that replays sessions: `stream` as people's apps do, or whole answers as jobs take them."""

    team: str
    stream: bool
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request and how it ended: `code` is None for an answer, else the error's."""

    session: str
    team: str
    number: int
    """From 1."""
    call_id: str | None = None
    code: str | None = None
    message: str = ""


Tell = Callable[[Side, Session, Turn | None], None]
"""Called after each turn, and with None when a session has ended."""


@dataclass(slots=True, kw_only=True)
class Replay:
    """Everything that one demo sends."""

    client: httpx.AsyncClient
    demo: str
    max_tokens: int
    tell: Tell
    turns: list[Turn] = field(default_factory=list)
    stopping: bool = False
    """Set it, and no further turn begins."""
    cut_off: int = 0
    """Turns that were cancelled under way."""

    async def run(self, sessions: Sequence[Session], sides: Sequence[Side], at_once: int) -> None:
        """Each session by each side; with `at_once` 2 the sides work next to each other, else in turns."""
        if at_once > 1:
            await asyncio.gather(*[self._walk([(side, session) for session in sessions]) for side in sides])
        else:
            await self._walk([(side, session) for session in sessions for side in sides])

    async def _walk(self, jobs: Sequence[tuple[Side, Session]]) -> None:
        for side, session in jobs:
            await self._session(side, session)

    async def _session(self, side: Side, session: Session) -> None:
        for index in range(len(session.turns)):
            if self.stopping:
                return
            turn = await self._turn(side, session, index)
            self.turns.append(turn)
            self.tell(side, session, turn)
            if turn.code is not None:
                break
        self.tell(side, session, None)

    async def _turn(self, side: Side, session: Session, index: int) -> Turn:
        options = {"model": MODEL, "max_tokens": self.max_tokens, "temperature": 0, "stream": side.stream}
        headers = {
            "authorization": f"Bearer {side.key}",
            "x-tollway-run": f"{self.demo}-{side.team}-{session.id}",
            "x-tollway-tags": f"demo={self.demo}",
        }
        call_id: str | None = None
        try:
            async with self.client.stream(
                "POST", "/v1/chat/completions", json={**options, **session.body(index)}, headers=headers
            ) as answer:
                call_id = answer.headers.get("x-tollway-call")
                code, message = await _end(answer, side.stream)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        except httpx.HTTPError as error:
            code, message = "connection_failed", f"{type(error).__name__}: {error}"
        return Turn(session=session.id, team=side.team, number=index + 1, call_id=call_id, code=code, message=message)


def client(url: str) -> httpx.AsyncClient:
    """What a replay sends with."""
    return httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False)


async def _end(answer: httpx.Response, stream: bool) -> tuple[str | None, str]:
    """How an answer ended: (None, "") or the error's code and text."""
    if answer.status_code >= 400:
        return _error(await answer.aread(), f"http_{answer.status_code}")
    if not stream:
        body = await answer.aread()
        return (None, "") if b'"choices"' in body else _error(body, "no_answer")
    last = ""
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            last = line[5:].strip()
            if last.startswith('{"error"'):
                return _error(last.encode(), "stream_error")
    return (None, "") if last == "[DONE]" else ("stream_cut", "the stream ended before its [DONE]")


def _error(body: bytes, otherwise: str) -> tuple[str, str]:
    try:
        error: dict[str, Any] = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or otherwise), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return otherwise, body[:200].decode("utf-8", "replace")
