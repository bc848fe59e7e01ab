"""Settlements on their way to a shared store: sent at once, waited for by nobody, kept until the store has confirmed them.

One that is sent again, after an outage, does no harm: it counts once by its id.
"""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.budgets import Hold, Settlement
from gateway.budgets.epochs import Epochs
from gateway.redis_link import Away, Link, Refused

REMEMBER_MS = 7_200_000
"""How long a settled id is known in the store: a settlement that is repeated later than that would count twice."""


@dataclass(slots=True)
class Post:
    """One settlement. `cost_nanos` None: not known, so that what was held counts."""

    hold: Hold
    cost_nanos: int | None
    tokens: int | None
    told: asyncio.Future[Settlement] | None = None
    """Who waits for it, if somebody does."""

    @property
    def came_to_nanos(self) -> int:
        return self.hold.amount_nanos if self.cost_nanos is None else self.cost_nanos

    def answer(self, settlement: Settlement | None = None) -> None:
        """Tells who waits; without the store's word by what is known here."""
        if self.told is not None and not self.told.done():
            cost = self.came_to_nanos
            self.told.set_result(settlement or Settlement(cost, over_hold=cost > self.hold.amount_nanos))


class Posts:
    """Those that the store has not confirmed."""

    def __init__(self, link: Link, epochs: Epochs) -> None:
        self._link, self._epochs = link, epochs
        self._pending: dict[str, Post] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, hold_id: str) -> bool:
        return hold_id in self._pending

    def holds(self) -> Iterator[Hold]:
        return (post.hold for post in self._pending.values())

    def put(self, post: Post) -> None:
        """Sends it, or keeps it for later; the first one for a hold counts."""
        hold = post.hold
        if (earlier := self._pending.get(hold.id)) is not None:
            post.answer(Settlement(earlier.came_to_nanos, repeated=True))
        elif not hold.slots and not hold.gates:
            post.answer()
        else:
            self._pending[hold.id] = post
            if self._epochs.open:
                self._send(post)
            else:
                post.answer()

    def answer_all(self) -> None:
        """The store is away: who waits is told what is known here."""
        for post in self._pending.values():
            post.answer()

    def send_all(self) -> None:
        """Again, after the store was away."""
        for post in list(self._pending.values()):
            self._send(post)

    def _send(self, post: Post) -> None:
        hold, cost = post.hold, "" if post.cost_nanos is None else post.cost_nanos
        words: list[str | int] = [word for account, start in hold.slots for word in (account.book, start)]
        back = [(gate.id, us) for gate in hold.gates if (us := gate.back_us(post.came_to_nanos, post.tokens))]
        words += [word for pair in back for word in pair]
        counts = len(hold.slots), len(back)
        try:
            reply = self._epochs.run("settle", hold.id, cost, hold.amount_nanos, REMEMBER_MS, *counts, *words)
        except Away:
            post.answer()
            return
        reply.add_done_callback(partial(self._told, post))

    def _told(self, post: Post, reply: asyncio.Future[Any]) -> None:
        """What is not confirmed stays pending."""
        if reply.cancelled() or (error := reply.exception()) is not None:
            if not reply.cancelled() and isinstance(error, Refused):
                self._link.drop(str(error))
            post.answer()
            return
        id, word, *answer = reply.result()
        if id != post.hold.id.encode():
            self._link.drop("an answer to another question")
        elif word == b"epoch":
            self._epochs.forgot()
        else:
            self._pending.pop(post.hold.id, None)
            cost, repeated = int(answer[0]), word == b"again"
            post.answer(Settlement(cost, over_hold=not repeated and cost > int(answer[1]), repeated=repeated))
