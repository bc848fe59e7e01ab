"""Explanations are made beside the calls: nothing is kept beyond bounds, and they reach their entries if they come in time."""
from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gateway import missed
from gateway.core.entry import Entry
from gateway.missed import Answered, Misses
from gateway.prefix.history import History
from router_policies.types import Rates
from tests.ledger.generate import entry
from tests.prefix.test_explain import RULES, made, talk


@pytest.fixture
def misses() -> Iterator[Misses]:
    made = Misses()
    yield made
    made.close()


def answered(id: str, request: dict[str, Any], read: int | None = 0, tokens: int = 4_000) -> Answered:
    links, body = made(request, "team", "openai_chat")
    return Answered(
        id=id, at_us=0, domain="team", chain=links, model="m", body=body, pool="pool", provider="openai", tokens=tokens, read=read,
        ttl_s=300, rates=Rates(uncached=2_000_000, cached=500_000),
    )  # fmt: skip


def at(minute: int, *turns: str) -> dict[str, Any]:
    return talk(*turns, system=RULES + f"Current time: 10:0{minute}")


async def told(misses: Misses, *ids: str) -> Sequence[Entry]:
    return await misses.fill([entry(id=id) for id in ids])


async def test_an_entry_is_told_why_its_prefix_was_missed(misses: Misses) -> None:
    """The one that missed, once; and nothing for the first turn and the one that read."""
    misses.remember(answered("a", at(1, "hi")))
    misses.remember(answered("b", at(1, "hi", "yes?", "more"), read=4_000))
    misses.remember(answered("c", at(2, "hi", "yes?", "more", "what?", "this"), tokens=4_100))
    a, b, c = await told(misses, "a", "b", "c")
    assert (a.miss, b.miss) == (None, None)
    assert c.miss is not None
    assert (c.miss["kind"], c.miss["lost_nanos"]) == ("timestamp", c.miss["lost"] * 1_500)
    (again,) = await told(misses, "c")
    assert again.miss is None


async def test_an_entry_does_not_wait_for_long(misses: Misses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is slow, the entry goes to the database; and the explanation that comes later does no harm."""
    held, entered = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> None:
        entered.set()
        held.wait(20)

    monkeypatch.setattr(missed, "explain", slow)
    misses.remember(answered("a", at(1, "hi")))
    assert entered.wait(20)
    (found,) = await told(misses, "a")
    assert found == entry(id="a")
    held.set()


async def test_a_prompt_that_cannot_be_looked_at_stops_nothing(misses: Misses, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(missed, "explain", lambda *_, **__: 1 / 0)
        misses.remember(answered("a", at(1, "hi")))
        await told(misses, "a")
    misses.remember(answered("b", at(1, "hi")))
    misses.remember(answered("c", at(2, "hi", "yes?", "more")))
    assert [one.miss is None for one in await told(misses, "b", "c")] == [True, False]


def queued(queue_bytes: int, history: History | None = None) -> Misses:
    """One whose thread does not run."""
    misses = Misses(history, queue_bytes)
    misses._wake.set()
    return misses


def test_the_queue_is_bounded_by_bytes() -> None:
    """The oldest go first; nobody waits for their explanation, and they are counted."""
    size = len(answered("a", at(1, "hi")).body)
    misses = queued(3 * size + 30)
    for n in range(10):
        misses.remember(answered(f"{n}", at(1, f"hi {n}")))
        assert misses._bytes == sum(len(one.body) for one in misses._queue) <= 3 * size + 30
    assert misses.dropped_so_far() == 7
    assert set(misses._open) == {"7", "8", "9"}
    assert len(misses._latest) == 3
    misses.remember(answered("long", at(1, "x" * 4 * size)))
    assert (misses.dropped_so_far(), len(misses._queue)) == (8, 3)


def test_of_a_conversation_that_hits_the_latest_turn_is_kept() -> None:
    """And of the earlier one that is not looked at yet, nothing; a first turn stays, since it may have missed something."""
    misses, turns = queued(1 << 20), ["hi", "yes?", "more", "what?", "this", "so?", "that"]
    for n in range(4):
        misses.remember(answered(f"{n}", at(1, *turns[: 2 * n + 1]), read=4_000 if n else 0))
    assert [(one.id, bool(one.body)) for one in misses._queue] == [("0", True), ("1", False), ("2", False), ("3", True)]
    assert set(misses._open) == {"0"}
    assert misses._bytes == sum(len(one.body) for one in misses._queue)
    assert misses.dropped_so_far() == 0


def test_what_is_not_worth_it_is_not_kept() -> None:
    misses = queued(1 << 20)
    misses.remember(answered("short", at(1, "hi"), tokens=100))
    off = queued(1 << 20, History(0))
    off.remember(answered("off", at(1, "hi")))
    assert (len(misses._queue), len(off._queue)) == (0, 0)

