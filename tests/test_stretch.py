"""Streams paid for in steps: what is passed on never needs more than is held, however it comes, and the hold grows only as needed."""
from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.budgets import BudgetRule, Hold, Payer
from gateway.budgets.limits import Gate
from gateway.budgets.memory import MemoryBudgets
from gateway.stretch import LIVE_US, STEP_TOKENS, Stretch, renew

RATE = 10
"""Nano-dollars a token here; the prompt costs nothing."""


class Relayed:
    """A stream whose bytes are part text, part wrapping."""

    complete = False

    def __init__(self, wrapping: int) -> None:
        self.wrapping, self.bytes = wrapping, 0

    def take(self, chunk: bytes) -> bool:
        self.bytes += len(chunk)
        return True

    def produced(self) -> str:
        return "x" * (self.bytes // self.wrapping)


def stretch(limit_tokens: int, most: int, now: list[int] | None = None) -> tuple[MemoryBudgets, Stretch]:
    clock = now or [0]
    budgets = MemoryBudgets(steady_us=lambda: clock[0])
    account = BudgetRule(name="cap", limit_nanos=limit_tokens * RATE, window="total").account(Payer(team="t"))
    assert account is not None
    first = min(STEP_TOKENS, most)
    hold = budgets.take([account], first * RATE, "a-1", LIVE_US)
    return budgets, Stretch(budgets, hold, first, most, lambda tokens: tokens * RATE, lambda nanos: min(nanos // RATE, most))


async def read(one: Stretch, relay: Relayed, chunks: list[int]) -> bool:
    """Whether all was passed on."""
    for size in chunks:
        going = one.ration(relay, relay.take, b"y" * size)
        while not going:
            if not await one.more(relay):
                return False
            going = one.ration(relay, relay.take, one.rest)
    return True


@given(limit=st.integers(STEP_TOKENS, 5 * STEP_TOKENS), wrapping=st.integers(1, 60), chunks=st.lists(st.integers(1, 60_000), max_size=30))
def test_nothing_is_passed_on_that_is_not_held(limit: int, wrapping: int, chunks: list[int]) -> None:
    """Tokens by three bytes each stay within the hold, the hold within the budget; a cut leaves less than a line unused."""
    budgets, one = stretch(limit, 10 * STEP_TOKENS)
    relay = Relayed(wrapping)
    whole = asyncio.run(read(one, relay, chunks))
    tokens = -(-relay.bytes // wrapping // 3)
    assert tokens * RATE <= one.hold.amount_nanos <= limit * RATE
    if whole:
        assert relay.bytes == sum(chunks)
        assert one.hold.amount_nanos <= (tokens + 2 * STEP_TOKENS) * RATE
    else:
        assert tokens >= limit - 64 - 1
        assert "cap" in one.why
    budgets.post(one.hold, tokens * RATE)
    (state,) = asyncio.run(budgets.snapshot())
    assert (state.spent_nanos, state.held_nanos) == (tokens * RATE, 0)


def test_a_hold_of_the_whole_maximum_is_never_asked_again() -> None:
    """The backend ends the stream itself."""
    _, one = stretch(10 * STEP_TOKENS, STEP_TOKENS)
    relay = Relayed(1)
    assert asyncio.run(read(one, relay, [50_000] * 4))
    assert one.hold.amount_nanos == STEP_TOKENS * RATE


def test_the_end_of_an_answer_is_passed_on_whatever_is_left() -> None:
    """Usage and end marker cost nothing."""
    _, one = stretch(STEP_TOKENS, 10 * STEP_TOKENS)
    relay = Relayed(1)
    relay.complete = True  # type: ignore[misc]
    assert one.ration(relay, relay.take, b"y" * 100_000)


def test_a_hold_that_is_renewed_does_not_expire() -> None:
    """Money, and a place in a limit of calls at once; a settled one stays settled."""

    async def story() -> None:
        now = [0]
        budgets, one = stretch(STEP_TOKENS, STEP_TOKENS, now)
        for _ in range(5):
            now[0] += LIVE_US - 1
            await renew(budgets, one.hold)
        (state,) = await budgets.snapshot()
        assert state.held_nanos == one.hold.amount_nanos
        budgets.post(one.hold, 7)
        await renew(budgets, one.hold)
        now[0] += LIVE_US + 1
        (state,) = await budgets.snapshot()
        assert (state.spent_nanos, state.held_nanos) == (7, 0)
        await renew(budgets, None)
        await renew(budgets, Hold("b", 0, 0, (), (Gate("g", "requests", 5, 1, ""),)))

    asyncio.run(story())
