"""Deadlines of calls (C10) on a virtual clock: an answer comes before the client's own time-out, whatever is slow."""
from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import parts
from tests.simulation.clock import SimulatedLoop, simulated
from tests.simulation.parts import Reader
from tests.simulation.world import MODEL, World

_SEED = 2
"""Of a world with money enough."""


def asked(folder: Path, timeout_s: float, slow: Callable[[World], None], *, stream: bool = False) -> tuple[Reader, float, World]:
    """One call of a client with that time-out; `slow` makes the world slow once the gateway runs. With the seconds it took."""

    async def live(world: World) -> tuple[Reader, float]:
        await world.begin()
        life = world.life
        assert life is not None
        slow(world)
        await asyncio.sleep(2.0)
        body = {"model": MODEL, "max_tokens": 20, "stream": stream, "messages": [{"role": "user", "content": "1 hello"}]}
        key = f"Bearer {world.key}".encode()
        headers = [(b"authorization", key), (b"x-stainless-read-timeout", str(timeout_s).encode())]
        reader, began_s = Reader(slow=False), world.loop.now_s
        await life.answer(json.dumps(body).encode(), headers, reader)
        assert reader.whole_s is not None
        took_s = reader.whole_s - began_s
        await asyncio.sleep(60)
        await world.verdict()
        await life.close()
        return reader, took_s

    with simulated(_SEED) as (loop, chance):
        asyncio.set_event_loop(loop)
        try:
            world = World(folder, loop, chance)
            world.durability = "power"
            world.servers._share = 1.0
            reader, took_s = loop.run_until_complete(live(world))
        finally:
            asyncio.set_event_loop(None)
    return reader, took_s, world


def slow_disk(world: World) -> None:
    """Each sync takes five seconds."""

    def run(executor: Any, func: Any, *args: Any) -> Any:
        if func is not os.fdatasync:
            return SimulatedLoop.run_in_executor(world.loop, executor, func, *args)
        synced = world.loop.create_future()
        world.loop.call_later(5.0, lambda: synced.done() or synced.set_result(None))
        return synced

    world.loop.run_in_executor = run  # type: ignore[method-assign]


def late_loop(world: World) -> None:
    """Each turn of the loop takes 150 ms."""
    check = world.loop.at_step

    def step() -> None:
        check()
        world.loop.now_s += 0.15

    world.loop.at_step = step


@pytest.mark.parametrize(("slow", "timeout_s"), [(slow_disk, 1.0), (slow_disk, 10.0), (late_loop, 3.0), (late_loop, 10.0)])
def test_a_silent_server_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: Callable[[World], None], timeout_s: float
) -> None:
    """Neither a disk nor a loop that is slow makes the error come after the client has gone; and it is booked."""
    monkeypatch.setattr(parts, "FAULTS", ("silent",))
    reader, took_s, world = asked(tmp_path, timeout_s, slow)
    assert (reader.status, b"deadline_exceeded" in reader.got) == (504, True)
    assert timeout_s / 3 < took_s < timeout_s
    assert [entry.status for entry in world.rows.table.values()] == ["sent_unanswered"]


def test_an_answer_that_is_not_safe_in_time_is_an_error_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `durability: power` an answer waits for the disk, but not longer than its client does; its cost stands."""
    monkeypatch.setattr(parts, "FAULTS", ("none",))
    reader, took_s, world = asked(tmp_path, 4.0, slow_disk)
    assert (reader.status, b"journal_unavailable" in reader.got) == (503, True)
    assert took_s < 4.0
    [entry] = world.rows.table.values()
    assert entry.status == "ok"
    assert entry.cost_nanos


def test_a_stream_that_has_begun_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline was for its first byte."""
    monkeypatch.setattr(parts, "FAULTS", ("none",))
    reader, took_s, _ = asked(tmp_path, 4.0, slow_disk, stream=True)
    assert reader.status == 200
    assert reader.got.endswith(b"data: [DONE]\n\n")
    assert took_s > 5.0
