"""An event loop whose time passes only when nothing is left to do, and a world in which nothing is left to chance."""
from __future__ import annotations

import asyncio
import contextlib
import os
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from gateway.core import ids

START_S = 1_790_000_000.0


class _Waits(selectors.DefaultSelector):
    """Instead of waiting the clock is put forward."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: Callable[[float], None] = lambda seconds: None

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that never comes")
        if timeout > 0:
            self.passes(timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`at_step` is called after each of its turns; what would run in a thread runs at once."""

    def __init__(self) -> None:
        selector = _Waits()
        selector.passes = self._passes
        super().__init__(selector)
        self._clock_resolution = 1e-9
        self.now_s = 0.0
        self.at_step: Callable[[], None] = lambda: None

    def _passes(self, seconds: float) -> None:
        self.now_s += seconds

    def time(self) -> float:
        return self.now_s if hasattr(self, "now_s") else 0.0

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.at_step()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[tuple[SimulatedLoop, random.Random]]:
    """A loop, and the chance that everything else is drawn from; clocks and random numbers are the seed's."""
    loop, chance = SimulatedLoop(), random.Random(seed)
    odd = random.Random(seed + 1)
    state = random.getstate()
    random.seed(seed)
    clocks = {
        "time": lambda: START_S + loop.now_s, "time_ns": lambda: int((START_S + loop.now_s) * 1e9),
        "monotonic": lambda: loop.now_s, "monotonic_ns": lambda: int(loop.now_s * 1e9), "perf_counter": lambda: loop.now_s,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, clock in clocks.items():
            stack.enter_context(mock.patch.object(time, name, clock))
        stack.enter_context(mock.patch.object(os, "urandom", odd.randbytes))
        stack.enter_context(mock.patch.object(ids, "_random", []))                      # drawn ahead
        stack.enter_context(mock.patch.object(random, "_urandom", odd.randbytes))       # of `secrets`
        for method in ("start", "join"):
            stack.enter_context(mock.patch.object(threading.Thread, method, return_value=None))
        try:
            yield loop, chance
        finally:
            random.setstate(state)
            loop.close()
