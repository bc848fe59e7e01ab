"""Who waits for whom, how long, and who asks other processes at all."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.fan_out import claimed, together
from gateway.planner import Planned, Planner
from gateway.planner.cohorts import Joined
from gateway.planner.held import name_of
from router_policies.rules import Klass
from tests.planner.test_planner import plan, planner, turns

PATIENT, HURRIED = Klass(name="patient"), Klass(name="hurried", value_usd_per_hour=1e9)
LONG_MS = 60_000.0
LONG = "toll road " * 7_000
"""So long that it is stored for a client of which nothing is known."""
QUESTIONS = [{"system": LONG, "messages": [{"role": "user", "content": f"question {n}"}]} for n in range(9)]


@dataclass
class Elsewhere:
    """Other processes, who answer as they are told to; the last answer holds on."""

    answers: list[Joined] = field(default_factory=lambda: [Joined(-1)])
    asked: list[list[int]] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)

    async def join(self, lead: int, cold: Sequence[tuple[int, float]]) -> Joined:
        self.asked.append([name for name, _ in cold])
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def begun(self, lead: int) -> None:
        self.told.append(("begun", lead))

    def end(self, lead: int) -> None:
        self.told.append(("end", lead))


def planned(one: Planner, body: Any, at_s: float = 0.0) -> Planned:
    _, found = plan(one, body, at_s=at_s)
    assert found is not None
    return found


class Calls:
    """Calls of one process, by the order in which they go out."""

    def __init__(self, one: Planner) -> None:
        self.one = one
        self.out: list[int] = []

    async def call(self, number: int, until: asyncio.Event | None = None, *, fails: bool = False, klass: Klass = PATIENT, most_ms: float = LONG_MS) -> None:
        async with together(self.one, planned(self.one, QUESTIONS[number]), 0, klass, most_ms) as begun:
            self.out.append(number)
            if until is not None:
                await until.wait()
            if not fails:
                begun()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_others_wait_for_the_first() -> None:
    calls, go = Calls(planner()), asyncio.Event()
    tasks = [asyncio.create_task(calls.call(n, go)) for n in range(4)]
    await settled()
    assert calls.out == [0]
    go.set()
    await asyncio.gather(*tasks)
    assert sorted(calls.out) == [0, 1, 2, 3]


async def test_a_leader_that_fails_is_followed_by_another_and_then_by_all() -> None:
    """One failure costs the others one more wait, two cost nothing more."""
    calls, first, second, rest = Calls(planner()), asyncio.Event(), asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(calls.call(n, (first, second, rest, rest)[n], fails=n < 2)) for n in range(4)]
    await settled()
    first.set()
    await settled()
    assert calls.out == [0, 1]
    second.set()
    await settled()
    assert sorted(calls.out) == [0, 1, 2, 3]
    rest.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("klass", "most_ms"), [(HURRIED, LONG_MS), (PATIENT, 0.0), (Klass(name="late", first_token_deadline_ms=0.0), LONG_MS)])
async def test_nobody_waits_longer_than_it_is_worth(klass: Klass, most_ms: float) -> None:
    """By the class's value of waiting, the policy's bound, and the class's deadline."""
    calls, go = Calls(planner()), asyncio.Event()
    tasks = [asyncio.create_task(calls.call(0, go)), asyncio.create_task(calls.call(1, go, klass=klass, most_ms=most_ms))]
    async with asyncio.timeout(10):
        while len(calls.out) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(*tasks)


async def test_half_of_the_time_until_its_deadline_is_the_most_that_a_call_waits() -> None:
    one = planner()
    leader = one.lead(planned(one, QUESTIONS[0]), 0)
    async with asyncio.timeout(10), together(one, planned(one, QUESTIONS[1]), 0, PATIENT, LONG_MS, time.monotonic() + 0.1):
        assert one.writer(planned(one, QUESTIONS[2])) is not None
    one.cohorts.end(leader)


async def test_the_first_call_of_a_burst_asks_for_all_of_its_process() -> None:
    """What is being written elsewhere is waited for there by one; when it can be read, all go on, and each leads for its own end."""
    one = planner()
    one.others = elsewhere = Elsewhere([Joined(0, "begun"), Joined(-1)])
    calls = Calls(one)
    await asyncio.gather(*[calls.call(n) for n in range(4)])
    assert sorted(calls.out) == [0, 1, 2, 3]
    assert len(elsewhere.asked) == 1
    assert not elsewhere.told
    assert one.held.has("anthropic", planned(one, QUESTIONS[0]).stored[0].key, 1)


async def test_who_leads_elsewhere_says_when_it_has_begun_and_when_it_is_over() -> None:
    one = planner()
    one.others = elsewhere = Elsewhere()
    await Calls(one).call(0)
    [(first, number), (last, same)] = elsewhere.told
    assert (first, last, number) == ("begun", "end", same)


@pytest.mark.parametrize(("answers", "asks"), [([Joined(0, "gone")], 2), ([Joined(0, "late")], 1)])
async def test_a_call_is_not_held_for_ever_by_what_happens_elsewhere(answers: list[Joined], asks: int) -> None:
    """It goes out by itself after two leaders failed, or when it has waited long enough."""
    one = planner()
    one.others = elsewhere = Elsewhere(answers)
    await Calls(one).call(0)
    assert (len(elsewhere.asked), elsewhere.told) == (asks, [])


async def test_a_cancelled_call_leaves_nobody_waiting() -> None:
    one = planner()

    class Never(Elsewhere):
        async def join(self, lead: int, cold: Sequence[tuple[int, float]]) -> Joined:
            await asyncio.Event().wait()
            raise AssertionError

    one.others = Never()
    task = asyncio.create_task(Calls(one).call(0))
    await settled()
    assert len(one.cohorts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not len(one.cohorts)


async def test_only_who_would_write_much_asks_others() -> None:
    """Not a prompt below the minimum, not a turn that adds a few words to what is stored, not what is stored already."""
    one = planner()
    one.others = elsewhere = Elsewhere()
    for body, asks in (({"messages": [{"role": "user", "content": "hi"}]}, 0), (turns(0, LONG), 1), (turns(1, LONG), 0), (turns(2, LONG), 0), (turns(2, LONG), 0)):
        before = len(elsewhere.asked)
        _, found = plan(one, body)
        if found is not None:
            async with together(one, found, 0, PATIENT, LONG_MS) as begun:
                begun()
        assert len(elsewhere.asked) - before == asks


async def test_one_call_of_all_processes_may_write_ahead() -> None:
    """In its own process nobody else may meanwhile; elsewhere somebody may be before it, and says so."""
    one = planner()
    one.others = elsewhere = Elsewhere([Joined(-1), Joined(0, "begun"), Joined(-1)])
    async with claimed(one, 7) as begun:
        assert begun is not None
        async with claimed(one, 7) as second:
            assert second is None
        begun()
    async with claimed(one, 7) as begun:
        assert begun is None
    async with claimed(one, 7) as begun:
        assert begun is not None
    assert elsewhere.asked == [[7]] * 3
    assert [word for word, _ in elsewhere.told] == ["begun", "end", "end", "end"]
    assert len({lead for _, lead in elsewhere.told}) == 3
    assert len(one.cohorts) == 0


async def test_calls_wait_for_what_is_written_ahead() -> None:
    calls, over = Calls(planner()), asyncio.Event()
    first = planned(calls.one, QUESTIONS[0])
    async with claimed(calls.one, name_of(first.pool, first.stored[0].key)) as begun:
        waiting = asyncio.create_task(calls.call(1, over))
        await settled()
        assert calls.out == []
        assert begun is not None
        begun()
        await settled()
        assert calls.out == [1]
    over.set()
    await waiting
