from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.backends import stored as stored_things
from gateway.backends.stored import Stored
from gateway.core.errors import NotFound


def test_only_the_team_that_stored_it_finds_it() -> None:
    """Another team is told that there is nothing; what nobody remembers is left to the provider."""
    stored = Stored()
    stored.keep("resp_1", "search", "openai")
    assert stored.backend("resp_1", "search") == "openai"
    assert stored.backend("resp_2", "search") is None
    with pytest.raises(NotFound) as caught:
        stored.backend("resp_1", "other", param="previous_response_id")
    assert caught.value.param == "previous_response_id"


def test_the_oldest_is_forgotten_first() -> None:
    """Memory is bounded; what is stored again is young again."""
    stored = Stored(most=2)
    for name in ("a", "b", "a", "c"):
        stored.keep(name, "t", "x")
    assert [stored.backend(name, "t") for name in "abc"] == ["x", None, "x"]


class Shelf:
    """Says what is written into it."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[list[str]] = asyncio.Queue()

    async def note(self, things: Sequence[tuple[str, str, str, int | None]]) -> None:
        await self.written.put([name for name, *_ in things])

    async def find(self, name: str) -> None:
        return None

    async def prune(self, now_us: int) -> None: ...


async def test_the_first_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may have the conversation's next turn in milliseconds; only what follows close behind waits."""
    monkeypatch.setattr(stored_things, "WRITE_S", 3_600.0)
    shelf = Shelf()
    stored = Stored(shelf)
    stored.start()
    stored.keep("resp_1", "t", "x")
    assert await shelf.written.get() == ["resp_1"]
    stored.keep("resp_2", "t", "x")
    await stored.close()
    assert await shelf.written.get() == ["resp_2"]
