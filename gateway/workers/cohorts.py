"""Cold prefixes that workers of one house write: the house says who leads, and whoever shares a prefix waits there."""
from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from gateway.planner.cohorts import Cohorts, Joined, Leader
from gateway.workers.link import Link, LinkLost

_KNOWN_S = 2.0
"""Until all workers have heard what is stored (`sharing.py`), and longer."""
_LEADS = Joined(-1)
_JOINED = msgspec.msgpack.Decoder(Joined)


class HouseCohorts:
    """Of all workers."""

    def __init__(self) -> None:
        self.leaders = Cohorts()
        self._begun: dict[int, float] = {}
        """Prefix -> until when its being there is told here (loop time), oldest first."""

    def begun(self, leader: Leader) -> None:
        now = asyncio.get_running_loop().time()
        for name in leader.names:
            self._begun.pop(name, None)
            self._begun[name] = now + _KNOWN_S
        self.leaders.begun(leader)
        while self._begun and (oldest := next(iter(self._begun.items())))[1] < now:
            del self._begun[oldest[0]]

    def can_be_read(self, name: int) -> bool:
        return self._begun.get(name, 0.0) > asyncio.get_running_loop().time()


class RoomCohorts:
    """One worker's part; see `Others`."""

    def __init__(self, house: HouseCohorts) -> None:
        self._house = house
        self._leads: dict[int, Leader] = {}

    def join(self, lead: int, cold: list[tuple[int, float]]) -> Joined | Coroutine[Any, Any, Joined]:
        """The longest prefix that can be read or is being written decides; who finds none leads at once."""
        for at in range(len(cold) - 1, -1, -1):
            name, worth_s = cold[at]
            if self._house.can_be_read(name):
                return Joined(at, "begun")
            leader = self._house.leaders.writer(name)
            if leader is not None:
                return _ended(at, leader, worth_s)
        self._leads[lead] = self._house.leaders.lead([name for name, _ in cold])
        return _LEADS

    def begun(self, lead: int) -> None:
        leader = self._leads.pop(lead, None)
        if leader is not None:
            self._house.begun(leader)

    def end(self, lead: int) -> None:
        leader = self._leads.pop(lead, None)
        if leader is not None:
            self._house.leaders.end(leader)

    def leave(self) -> None:
        """The worker is dead: nobody waits for it."""
        for lead in list(self._leads):
            self.end(lead)


async def _ended(at: int, leader: Leader, worth_s: float) -> Joined:
    return Joined(at, await leader.wait(worth_s))


class FarCohorts:
    """A worker's end; see `Others`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def join(self, lead: int, cold: Sequence[tuple[int, float]]) -> Joined:
        try:
            return _JOINED.decode(await self._link.ask("cohorts.join", (lead, cold)))
        except LinkLost:
            return _LEADS
        except asyncio.CancelledError:
            self.end(lead)
            raise

    def begun(self, lead: int) -> None:
        self._link.tell("cohorts.begun", lead)

    def end(self, lead: int) -> None:
        self._link.tell("cohorts.end", lead)
