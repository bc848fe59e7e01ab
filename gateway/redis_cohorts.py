"""Cold prefixes that processes on one Redis write: a key for each says who leads, or that it can be read by now.

A leader's keys are a lease, which its process renews while it waits for its answer; if the process dies they go by
themselves. Who waits looks at them every few hundredths of a second, all calls of a process in one command. With Redis away
everybody goes on as if alone. Keys are digests, no text and no names, and lie in the one slot of their organisation.
"""
from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from gateway.planner.cohorts import Ended, Joined, Leader
from gateway.redis_link import Away, Link, Refused

_LEASE_MS, _LOOK_S, _KNOWN_MS = 3_000, 0.03, 2_000
_LOOKS_A_RENEWAL = 30
_BEGUN = b"+"
_LEADS = Joined(-1)
_JOIN = """
for at = #KEYS, 1, -1 do
  local who = redis.call('GET', KEYS[at])
  if who then return {at - 1, who} end
end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return {-1, ARGV[1]}
"""
_RENEW = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('PEXPIRE', key, ARGV[2]) end
end
"""
_END = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
"""


class RedisCohorts:
    """See `Others`. The link is its own."""

    def __init__(self, link: Link, org: str) -> None:
        self._link, self._prefix = link, f"tollway:{{{org}}}:writing:"
        self._me = secrets.token_hex(6)
        self._leads: dict[int, list[str]] = {}
        """What this process leads for and has not begun."""
        self._waiting: dict[tuple[str, bytes], list[Leader]] = {}
        """Key and the leader it named -> who waits for it here."""
        self._tending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._link.start(0.0)

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tending
        await self._link.close()

    async def join(self, lead: int, cold: Sequence[tuple[int, float]]) -> Joined:
        keys = [f"{self._prefix}{name:x}" for name, _ in cold]
        try:
            at, who = await self._say(_JOIN, keys, self._token(lead), _LEASE_MS)
        except (Away, Refused):
            return _LEADS
        if at < 0:
            self._leads[lead] = keys
            self._tend()
            return _LEADS
        return Joined(at, "begun" if who == _BEGUN else await self._wait(keys[at], who, cold[at][1]))

    def begun(self, lead: int) -> None:
        with contextlib.suppress(Away):
            for key in self._leads.pop(lead, ()):
                self._link.call("SET", key, _BEGUN, "PX", _KNOWN_MS)

    def end(self, lead: int) -> None:
        keys = self._leads.pop(lead, None)
        if keys is not None:
            with contextlib.suppress(Away):
                self._say(_END, keys, self._token(lead))

    def _token(self, lead: int) -> str:
        return f"{self._me}:{lead}"

    def _say(self, script: str, keys: Sequence[str], *arguments: str | int) -> asyncio.Future[Any]:
        return self._link.call("EVAL", script, len(keys), *keys, *arguments)

    async def _wait(self, key: str, who: bytes, most_s: float) -> Ended:
        one, waiting = Leader(()), self._waiting.setdefault((key, who), [])
        waiting.append(one)
        self._tend()
        try:
            return await one.wait(most_s)
        finally:
            waiting.remove(one)
            if not waiting:
                self._waiting.pop((key, who), None)

    def _tend(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.create_task(self._run(), name="cohorts")

    async def _run(self) -> None:
        """For as long as somebody waits or leads here."""
        looks = 0
        while self._waiting or self._leads:
            await asyncio.sleep(_LOOK_S)
            looks += 1
            try:
                if looks % _LOOKS_A_RENEWAL == 0:
                    await self._renew()
                await self._look()
            except (Away, Refused):
                for each in list(self._waiting):
                    self._tell(each, "gone")

    async def _renew(self) -> None:
        for lead, keys in list(self._leads.items()):
            await self._say(_RENEW, keys, self._token(lead), _LEASE_MS)

    async def _look(self) -> None:
        asked = list(self._waiting)
        if not asked:
            return
        for each, now in zip(asked, await self._link.call("MGET", *[key for key, _ in asked]), strict=True):
            if now != each[1]:
                self._tell(each, "begun" if now == _BEGUN else "gone")

    def _tell(self, each: tuple[str, bytes], ended: Ended) -> None:
        for one in self._waiting.get(each, ()):
            one.over(ended)
