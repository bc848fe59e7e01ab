"""As many calls at once as the loop keeps up with; who waits goes first; memory has the last word."""
from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.admission import ALONE_TURN_S, CEILING, FEW, FEW_WAIT_S, FLOOR, LEAST_STARTS, TURN_S, WAIT_S, Admission
from gateway.core.errors import Overloaded
from tests.simulation.clock import simulated


def run(test: Coroutine[Any, Any, None]) -> None:
    """In simulated time: what waits, waits as long as it says, however slow the machine is."""
    with simulated(0) as (loop, _):
        loop.run_until_complete(asyncio.wait_for(test, 10))


def full(places: int) -> Admission:
    admission = Admission(worked_s=lambda: 0.0)
    admission.limit = admission.in_flight = places
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
            assert not admission.may_enter()
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

        admission.sheds = True
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
        assert admission.may_enter()

    run(test())


def test_few_begin_in_one_turn_of_the_loop() -> None:
    """The rest does in the turns after it, each team in its turn: what one sends at once keeps nobody long."""

    async def test() -> None:
        admission, turn, came = Admission(), 0, list[tuple[int, str]]()

        async def enter(team: str) -> None:
            if not admission.may_enter():
                await admission.wait(team, patient=False)
            came.append((turn, team))

        waiting = [asyncio.ensure_future(enter(team)) for team in ("loud",) * 10 + ("quiet",)]
        while len(came) < 11:
            await asyncio.sleep(0)
            turn += 1
        await asyncio.gather(*waiting)
        per_turn = Counter(turn for turn, _ in came)
        assert max(per_turn.values()) == LEAST_STARTS
        assert [team for _, team in came].index("quiet") <= LEAST_STARTS + 1
        assert admission.in_flight == 11

    run(test())


class Server:
    """Takes `serves_s` for each call that comes in."""

    def __init__(self, admission: Admission, serves_s: float) -> None:
        self._admission, self._serves_s = admission, serves_s
        self.answered = 0
        self.refusals: list[Overloaded] = []

    async def call(self) -> None:
        try:
            if not self._admission.may_enter():
                await self._admission.wait("t", patient=False)
        except Overloaded as refusal:
            self.refusals.append(refusal)
        else:
            await asyncio.sleep(self._serves_s)
            self._admission.leave()
            self.answered += 1


def test_more_than_can_be_served_is_refused() -> None:
    """More than leaves, for two seconds: 503 with Retry-After 1 for what is too much, and no place is lost."""

    async def test() -> None:
        admission = Admission()
        server = Server(admission, 0.01)
        admission.start()
        admission.limit = 1
        admission.felt = lambda lag_s: None  # type: ignore[method-assign] # the limit stays
        calls, began = list[asyncio.Task[None]](), asyncio.get_running_loop().time()
        while (at := asyncio.get_running_loop().time() - began) < 2.0:
            calls += [asyncio.ensure_future(server.call()) for _ in range(int(at * 300) - len(calls))]
            await asyncio.sleep(0.002)
        await asyncio.gather(*calls)
        assert server.answered > 50
        assert len(server.refusals) > 50
        assert {(no.status, no.retry_after_s) for no in server.refusals} == {(503, 1)}
        assert admission.in_flight == 0
        assert admission.may_enter()
        admission.stop()

    run(test())


def test_a_burst_is_served() -> None:
    """Two hundred at once, at a gateway that had nothing to do: none is refused."""

    async def test() -> None:
        admission = Admission()
        server = Server(admission, 0.001)
        admission.start()
        await asyncio.gather(*(server.call() for _ in range(200)))
        assert (server.answered, server.refusals, admission.in_flight) == (200, [], 0)
        admission.stop()

    run(test())


def test_clients_that_wait_for_their_answers_are_all_served() -> None:
    """A hundred of them at a server that takes one at a time: a queue that stays, but does not grow."""

    async def test() -> None:
        admission = Admission()
        server = Server(admission, 0.001)
        admission.start()
        admission.limit = 1
        admission.felt = lambda lag_s: None  # type: ignore[method-assign] # the limit stays

        async def client() -> None:
            while server.answered < 1_000:
                await server.call()

        await asyncio.gather(*(client() for _ in range(100)))
        assert server.refusals == []
        admission.stop()

    run(test())


def test_a_process_that_stood_still_refuses_nobody_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for longer than anybody may wait: who waited is served as soon as it goes on."""
    monkeypatch.setattr("gateway.admission.MOST_WAIT_S", 2.0)

    async def test() -> None:
        admission = Admission()
        server = Server(admission, 0.001)
        admission.start()
        calls = [asyncio.ensure_future(server.call()) for _ in range(50)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(time.sleep, 2.5)
        await asyncio.gather(*calls)
        assert (server.answered, server.refusals) == (50, [])
        admission.stop()

    run(test())


def test_who_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few there are, where the loop has the time."""
    monkeypatch.setattr("gateway.admission.MOST_WAIT_S", 0.2)

    async def test() -> None:
        admission = full(1)
        admission.felt = lambda lag_s: None  # type: ignore[method-assign] # the limit stays
        admission.start()
        with pytest.raises(Overloaded):
            await admission.wait("a", patient=False)
        admission.stop()

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
                await admission.wait(patient=patient)
            else:
                assert not admission.may_enter()
                with pytest.raises(Overloaded, match="memory"):
                    await admission.wait(patient=patient)

    run(test())


def test_more_begin_in_a_turn_while_one_team_is_alone() -> None:
    """Short turns are for others' sake: as soon as two teams wait they are short again, and for a second after that; and for
    the sake of a burst that meets a loop with time to spare."""

    async def test() -> None:
        admission = full(1)

        def most(*teams: str, busy: float = 1.5) -> int:
            for team in teams:
                admission.queue(team, lambda refusal: None, patient=False)
            admission._leaves_per_s, admission._busy = 1_000 / TURN_S, busy
            admission._tick()
            assert admission._timer is not None
            admission._timer.cancel()
            return admission._most_starts

        alone = most("loud", "loud")
        assert alone >= 700 * ALONE_TURN_S / TURN_S
        assert most("loud", "quiet") <= 1_000
        assert max(most("loud") for _ in range(15)) <= 1_000
        assert max(most("loud") for _ in range(10)) == alone
        assert most("loud", busy=0.5) <= 1_000
        admission.sheds, admission._comes_per_s = True, 1e9
        assert most("loud") <= 1_000

    run(test())


def test_a_call_whose_caller_gives_up_first_is_refused_before() -> None:
    """It waits as long as it said, not as long as others may; and takes no place later."""

    async def test() -> None:
        admission, told = full(1), list[tuple[str, bool, float]]()
        loop = asyncio.get_running_loop()
        for name, most_s in (("short", 0.5), ("long", 3.0), ("any", None)):
            admission.queue("t", lambda no, name=name: told.append((name, no is None, loop.time())), patient=False, most_s=most_s)
        await asyncio.sleep(0.6)
        assert [(name, came) for name, came, _ in told] == [("short", False)]
        assert told[0][2] == pytest.approx(0.5, abs=0.01)
        admission.leave()
        assert told[1][:2] == ("long", True)
        await asyncio.sleep(3.0)
        assert len(told) == 2
        admission.leave()
        assert told[2][:2] == ("any", True)
        admission.leave()
        assert admission.in_flight == 0

    run(test())


def test_how_late_the_loop_was_is_forgotten_in_seconds() -> None:
    """The worst of it counts, not the mean; half of it after a second of twenty ticks."""
    admission = full(1)
    admission.felt(0.4)
    assert admission.late_s == 0.4
    for _ in range(20):
        admission.felt(0.0)
    assert admission.late_s == pytest.approx(0.2)


def test_while_it_sheds_it_says_so_before_a_call_is_read() -> None:
    """The same as asking for a place would: of a team whose queue is full, and of batch behind anybody who goes first."""

    async def test() -> None:
        admission = full(1)
        assert not admission.refuses("a", patient=False)
        for _ in range(8):
            admission.queue("a", lambda _: None, patient=False)
        assert not admission.refuses("a", patient=False), "a burst may wait"
        admission.sheds = True
        assert admission.refuses("a", patient=False)
        assert not admission.refuses("b", patient=False)
        assert admission.refuses("b", patient=True)
        for team, patient in (("a", False), ("b", True)):
            with pytest.raises(Overloaded):
                admission.queue(team, lambda _: None, patient=patient)
        for _ in range(8):
            admission.leave()
            await asyncio.sleep(0.01)
        assert not admission.refuses("a", patient=False)
        assert not admission.refuses("b", patient=True)

    run(test())


def test_a_team_with_few_calls_is_not_refused_for_a_short_stall() -> None:
    """While it sheds: its turn would come at once, if nothing held the loop up; a full queue waits no longer than it may."""

    async def test() -> None:
        admission, refused = full(1), Counter[str]()

        def go(team: str) -> Any:
            return lambda no: refused.update([team] if no else [])

        for team, calls in (("loud", 8), ("quiet", 1)):
            for _ in range(calls):
                admission.queue(team, go(team), patient=False)
        admission.sheds = True
        await asyncio.sleep(2 * WAIT_S + 0.001)
        assert refused == {"loud": 8 - FEW}
        await asyncio.sleep(FEW_WAIT_S)
        assert refused == {"loud": 8, "quiet": 1}

    run(test())
