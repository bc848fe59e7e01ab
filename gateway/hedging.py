"""A second attempt beside a silent first one: both run, the first to have something for the client answers it.

Nothing is hedged once a byte has gone out. The loser is told to stop and booked as `lost`, with what it is thought to have
read; one that came whole at the same moment is booked as it came. `router_policies/hedge.py` says when it is worth it.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.attempt import Outcome, Settle
from gateway.relay import Client, Headers


class Race:
    """One call's client, and whoever wants to answer it. `drain`: attempts go on when the client hangs up."""

    def __init__(self, client: Client, *, drain: bool) -> None:
        self.client, self.drain = client, drain
        self.winner: Side | None = None
        self.asked: str | None = None
        """Key of the lane that was asked beside the first, if one was."""
        self._sides: list[Side] = []

    async def run(
        self, after_s: float, first: Callable[[Side], Awaitable[None]], may: Callable[[], bool],
        second: Callable[[Side], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Makes the first attempt, and the second if that is silent for `after_s` and `may` says yes. Raises what the winner
        raised, or the first where neither answered."""
        self.client.on_gone(self._gone)
        tasks = [asyncio.ensure_future(first(self._side()))]
        try:
            await asyncio.wait(tasks, timeout=after_s)
            if not (tasks[0].done() or self.winner or self.client.gone) and may():
                tasks.append(asyncio.ensure_future(second(self._side())))
            told = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.client.on_gone(None)
            for task in tasks:
                task.cancel()
        error = told[0 if self.winner is None else self._sides.index(self.winner)]
        if error is not None:
            raise error

    def claim(self, side: Side) -> bool:
        """Whether this side answers; from the first that asks on, nobody else does."""
        if self.winner is None:
            self.winner = side
            for other in self._sides:
                if other is not side:
                    other.lose()
        return self.winner is side

    def _side(self) -> Side:
        side = Side(self)
        side.gone = self.client.gone and not self.drain
        self._sides.append(side)
        return side

    def _gone(self) -> None:
        if not self.drain:
            for side in self._sides:
                side.leave()


class Side(Client):
    """The client as one of the racing attempts sees it: gone, when another one has won."""

    __slots__ = ("_race", "lost")

    def __init__(self, race: Race) -> None:
        super().__init__()
        self._race = race
        self.lost = False

    def leave(self) -> None:
        """The client hung up."""
        self._left()

    def lose(self) -> None:
        """Another attempt answers."""
        self.lost = True
        self._left()

    def settling(self, settle: Settle) -> Settle:
        """Books a loser as one, with the prompt that its backend has read."""

        async def settled(outcome: Outcome) -> Sequence[tuple[bytes, bytes]]:
            if self.lost and outcome.status == "client_gone":
                outcome.status, outcome.error = "lost", "another lane answered first"
                if outcome.produced is None:
                    outcome.produced = str
            return await settle(outcome)

        return settled

    def begin(self, status: int, headers: Headers) -> None:
        if self._race.claim(self):
            self.started = True
            self._race.client.begin(status, headers)

    def write(self, data: bytes) -> bool:
        return self._race.winner is self and self._race.client.write(data)

    async def drained(self) -> None:
        if self._race.winner is self:
            await self._race.client.drained()

    def ping(self, every_s: float, data: bytes) -> None:
        if self._race.winner is self:
            self._race.client.ping(every_s, data)

    async def end(self, data: bytes = b"") -> None:
        self.ended = True
        if self._race.winner is self:
            self._race.client.complete = self.complete
            await self._race.client.end(data)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.ended = True
        if self._race.claim(self):
            self.started = True
            self._race.client.complete = self.complete
            await self._race.client.respond(status, headers, body)
