"""As many calls at once as the loop keeps up with; who waits goes first; memory has the last word."""
from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.admission import CEILING, FLOOR, Admission
from gateway.core.errors import Overloaded


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def full(places: int) -> Admission:
    admission = Admission()
    admission.limit = places
    assert all(admission.may_enter(patient=False) for _ in range(places))
    return admission


def test_it_shrinks_while_the_loop_is_late_and_grows_again() -> None:
    """Below what is in flight at once, never below the floor, back to the ceiling in seconds."""
    admission = full(1_000)
    admission.limit = CEILING
    for _ in range(10):
        admission.felt(0.5)
    assert FLOOR <= admission.limit < 1_000
    for _ in range(200):
        admission.felt(0.5)
    assert admission.limit == FLOOR
    for _ in range(1_000):
        admission.felt(0.001)
    assert admission.limit == CEILING


def test_a_place_that_comes_free_goes_to_who_waits_and_not_to_batch() -> None:
    """Two queues: interactive calls first, in order of arrival."""

    async def test() -> None:
        admission, came = full(1), []

        async def enter(name: str, patient: bool) -> None:
            assert not admission.may_enter(patient=patient)
            await admission.wait(patient=patient)
            came.append(name)

        waiting = [asyncio.ensure_future(enter(name, name.startswith("b"))) for name in ("b1", "a1", "b2", "a2")]
        await asyncio.sleep(0)
        for _ in range(4):
            admission.leave()
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert came == ["a1", "a2", "b1", "b2"]
        admission.leave()
        assert admission.in_flight == 0

    run(test())


def test_a_team_that_sends_too_much_delays_itself() -> None:
    """Of those who wait each team comes in turn; what could not be served in time is refused at once."""

    async def test() -> None:
        admission, came, refused = full(1), [], []

        async def enter(team: str) -> None:
            try:
                await admission.wait(team, patient=False)
            except Overloaded:
                refused.append(team)
            else:
                came.append(team)

        waiting = [asyncio.ensure_future(enter(team)) for team in ("loud",) * 20 + ("quiet",) * 2]
        await asyncio.sleep(0)
        assert refused == ["loud"] * 12
        for _ in range(4):
            admission.leave()
            await asyncio.sleep(0)
        assert came == ["loud", "quiet", "loud", "quiet"]
        for _ in range(6):
            admission.leave()
        await asyncio.gather(*waiting)
        admission.leave()
        assert admission.in_flight == 0

    run(test())


def test_a_call_that_is_given_up_takes_no_place() -> None:
    """Neither while it waits nor in the moment in which a place came."""

    async def test() -> None:
        admission = full(1)
        waits = asyncio.ensure_future(admission.wait("a", patient=False))
        comes = asyncio.ensure_future(admission.wait("b", patient=False))
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.sleep(0)
        admission.leave()           # b's place
        comes.cancel()
        await asyncio.gather(waits, comes, return_exceptions=True)
        assert admission.in_flight == 0
        assert admission.may_enter(patient=False)

    run(test())


def test_nobody_waits_longer_than_a_tenth_of_a_second() -> None:
    """Then 503 with Retry-After 1, and no place is lost."""

    async def test() -> None:
        admission = full(1)
        with pytest.raises(Overloaded) as refused:
            await admission.wait(patient=False)
        assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
        admission.leave()
        assert admission.in_flight == 0
        assert admission.may_enter(patient=False)

    run(test())


@pytest.mark.parametrize(("share", "batch", "interactive"), [(0.5, True, True), (0.85, False, True), (0.97, False, False)])
def test_memory_refuses_batch_first(share: float, batch: bool, interactive: bool) -> None:
    """Above 80 % of the limit, and all that is new above 95 %."""

    async def test() -> None:
        admission = Admission(1_000, rss=lambda: int(share * 1_000))
        admission.start()
        await asyncio.sleep(0.8)
        admission.stop()
        for patient, allowed in ((True, batch), (False, interactive)):
            if allowed:
                assert admission.may_enter(patient=patient)
            else:
                with pytest.raises(Overloaded, match="memory"):
                    admission.may_enter(patient=patient)

    run(test())
