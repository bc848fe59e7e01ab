"""Asks engines how busy they are, twice a second, off the path of calls; and once, what they can do.

A figure older than three rounds is stale and not given: who decides falls back on what he counted himself.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from gateway.backends.engines.figures import Capabilities, Engine, Load, Sample, between

EVERY_S = 0.5
_STALE_ROUNDS = 3

Fetch = Callable[[str, str, bytes | None], Awaitable[tuple[int, bytes]]]
"""(method, path under the server's root, JSON body) -> status and body; raises `OSError` where there is no answer."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """One engine under watch."""

    engine: Engine
    fetch: Fetch
    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    _before: Sample | None = None
    _load: Load | None = None
    problem: str | None = field(default=None)
    """Why the last round told nothing."""

    def load(self) -> Load | None:
        """The live figures; None where there are none that are fresh."""
        fresh = self._load is not None and self.clock() - self._load.at <= _STALE_ROUNDS * self.every_s
        return self._load if fresh else None

    async def run(self) -> None:
        """Ask for as long as the task lives."""
        while self.engine.paths:
            await self.look()
            await asyncio.sleep(self.every_s)

    async def look(self) -> None:
        """One round."""
        bodies = dict(zip(self.engine.paths, await asyncio.gather(*map(self._get, self.engine.paths)), strict=True))
        if all(body is None for body in bodies.values()):
            return
        now = self.engine.read(bodies)
        self._load, self._before = between(self._before, now, self.clock()), now
        self.problem = None

    async def _get(self, path: str) -> bytes | None:
        try:
            status, body = await self.fetch("GET", path, None)
        except OSError as error:
            self.problem = f"{path}: {error}"
            return None
        if status != 200:
            self.problem = f"{path} answered {status}"
        return body if status == 200 else None


async def probe(engine: Engine, fetch: Fetch, model: str) -> Capabilities:
    """One call of one token, then one with a priority: what does the server report, what does it take?"""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    status, answer = await fetch("POST", "/v1/chat/completions", msgspec.json.encode(body))
    cached = status == 200 and _cached_tokens(answer) is not None
    priority = False
    if engine.priority is not None and status == 200:
        asked = body | {"priority": engine.priority(0.75)}
        priority = (await fetch("POST", "/v1/chat/completions", msgspec.json.encode(asked)))[0] == 200
    watch = Watch(engine=engine, fetch=fetch)
    await watch.look()
    return Capabilities(
        answers=status == 200, cached_tokens=cached, priority=priority, salt=engine.salt_field is not None,
        load=watch.load() is not None,
    )  # fmt: skip


def _cached_tokens(answer: bytes) -> int | None:
    """None where the server does not say: unknown is not 0."""
    try:
        cached = msgspec.json.decode(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return cached if type(cached) is int else None
