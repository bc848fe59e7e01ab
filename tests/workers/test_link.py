"""Calls between processes: typed both ways, in order, errors with their figures, and nobody waits for the dead."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.budgets import BudgetRule, Gate, Payer, Refused, StoreAway, TooFast
from gateway.budgets.windows import Window
from gateway.core.errors import RateLimited
from gateway.workers.errors import CODECS
from gateway.workers.link import FarError, Link, LinkLost, Stub, connect, methods


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 1


class Shop:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def grow(self, thing: Thing, by: int = 1) -> Thing:
        return Thing(thing.name, thing.size + by)

    async def hear(self, word: str) -> None:
        self.heard.append(word)

    async def fail(self, how: str) -> None:
        if how == "budget":
            account = BudgetRule(name="cap", limit_nanos=7).account(Payer(team="t"))
            assert account is not None
            raise Refused(account, 5, 1, 3, Window(None, None))
        if how == "gate":
            raise TooFast(Gate("t/requests", "requests", 60, 1, "team t may do so much"), 500_000)
        if how == "away":
            raise StoreAway
        if how == "rate":
            raise RateLimited("slowly", retry_after_s=2.5)
        raise KeyError(how)

    async def hang(self) -> None:
        await asyncio.Event().wait()


def run(test: Callable[[Shop, Shop, Link, Link], Awaitable[None]]) -> None:
    """A shop served at one end, and its stub at the other."""

    async def both() -> None:
        shop, (a, b) = Shop(), socket.socketpair()
        here = await connect(a, methods("shop", shop), lambda: None, CODECS)
        there = await connect(b, {}, lambda: None, CODECS)
        await test(shop, cast("Shop", Stub(there, "shop", Shop)), here, there)
        here.close()
        there.close()

    asyncio.run(asyncio.wait_for(both(), 10))


def test_arguments_and_results_are_what_the_method_says() -> None:
    """Positions, names and defaults; large ones too."""

    async def test(_: Shop, far: Shop, *__: Any) -> None:
        assert await far.grow(Thing("a"), 2) == Thing("a", 3)
        assert await far.grow(thing=Thing("a")) == Thing("a", 2)
        large = "x" * 3_000_000
        assert (await far.grow(Thing(large))).name == large
        assert len(await asyncio.gather(*(far.grow(Thing(str(n)), n) for n in range(500)))) == 500

    run(test)


def test_what_is_told_comes_before_what_is_asked_later() -> None:
    """So a settled hold is settled when the next one is asked for."""

    async def test(shop: Shop, far: Shop, _: Link, there: Link) -> None:
        for n in range(100):
            there.tell("shop.hear", str(n))
        await far.grow(Thing("a"))
        assert shop.heard == [str(n) for n in range(100)]

    run(test)


def test_errors_keep_their_class_and_figures() -> None:
    """Those that a caller acts on; others are one class with the text."""

    async def test(_: Shop, far: Shop, *__: Any) -> None:
        with pytest.raises(Refused) as no:
            await far.fail("budget")
        assert (no.value.room_nanos, no.value.rule.name) == (1, "cap")
        assert 'budget "cap"' in str(no.value)
        with pytest.raises(RateLimited, match="slowly") as slow:
            await far.fail("rate")
        assert slow.value.retry_after_s == 2.5
        with pytest.raises(TooFast, match="so much") as fast:
            await far.fail("gate")
        assert fast.value.retry_after_s == 0.5
        with pytest.raises(StoreAway, match="cannot be looked at"):
            await far.fail("away")
        with pytest.raises(FarError, match="KeyError"):
            await far.fail("odd")

    run(test)


def test_nobody_waits_for_the_dead() -> None:
    """Neither who has asked nor who asks now."""

    async def test(_: Shop, far: Shop, here: Link, there: Link) -> None:
        waiting = asyncio.ensure_future(far.hang())
        await far.grow(Thing("a"))
        here.close()
        with pytest.raises(LinkLost):
            await waiting
        with pytest.raises(LinkLost):
            await far.grow(Thing("a"))
        there.tell("shop.hear", "x")

    run(test)
