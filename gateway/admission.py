"""How many calls are served at once: as many as the event loop keeps up with; the rest waits a moment or comes back.

The measure is the loop's own lag: a timer that is due every 50 ms and comes late says that there is more to do than time to do
it. The limit then shrinks below what is in flight, and grows again while the lag is small, as in TCP. Streams that wait for
their model cost no time, so thousands may be open. Who waits is served before what nobody waits for, and of those who wait
each team in turn, so that one that sends too much delays only itself. A call that would wait too long is refused at once,
before it is read: what is refused must cost little. Memory near its limit refuses the patient first, then all that is new.
Health and metrics never come here.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gateway.core.errors import Overloaded
from gateway.settings import Settings
from router_policies.rules import Policy

WAIT_S = 0.1
TICK_S = 0.05
SLOW_S, QUICK_S = 0.1, 0.03
FLOOR, CEILING = 256, 12_000
QUEUE_S, LEAST_QUEUE = 0.04, 8
"""As many calls of a team may wait as leave within that time; a few always may."""
_BATCH_SHARE, _ALL_SHARE = 0.80, 0.95
_STATM = Path("/proc/self/statm")
_PAGE = 4096
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


_Queues = dict[str, deque[asyncio.Future[None]]]
"""Team -> its calls that wait; the team whose turn it is stands first."""


class Admission:
    """One per process. `enter` before a call, `leave` after it."""

    def __init__(self, memory_limit_bytes: int | None = None, rss: Callable[[], int] | None = None) -> None:
        self.limit = float(CEILING)
        self.in_flight = 0
        self.lag_s = 0.0
        self._memory_limit = memory_limit_bytes
        self._rss = rss or rss_bytes
        self._memory_share = 0.0
        self._waiting: tuple[_Queues, _Queues] = ({}, {})
        self._waits = 0
        self._left = 0
        self._leaves_per_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ticks = 0

    def may_enter(self, *, patient: bool) -> bool:
        """The quick way in, without waiting. Raises `Overloaded` where memory says no."""
        if self._memory_share > _BATCH_SHARE and (patient or self._memory_share > _ALL_SHARE):
            raise _refusal("the gateway is short of memory")
        if self.in_flight < self.limit and not self._waits:
            self.in_flight += 1
            return True
        return False

    @property
    def crowded(self) -> bool:
        """Whether calls wait."""
        return self._waits > 0

    def look(self, team: str, *, patient: bool) -> None:
        """Raises `Overloaded` where a call of the team would have to wait too long."""
        queues = self._waiting[patient]
        if len(queues.get(team, ())) >= max(self._leaves_per_s * QUEUE_S / max(len(queues), 1), LEAST_QUEUE):
            raise _refusal("the gateway is overloaded")

    async def wait(self, team: str = "", *, patient: bool) -> None:
        """Waits for a place, at most `WAIT_S`. Raises `Overloaded`."""
        self.look(team, patient=patient)
        queue = self._waiting[patient].setdefault(team, deque())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._waits += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # it came at the last moment
                if isinstance(error, TimeoutError):
                    return
                self.leave()
            elif place in queue:
                queue.remove(place)
                self._waits -= 1
            if isinstance(error, TimeoutError):
                raise _refusal("the gateway is overloaded") from None
            raise

    def leave(self) -> None:
        """The call is over; the next one that waits comes in."""
        self.in_flight -= 1
        self._left += 1
        if self._waits:
            self._let_in()

    # the loop's pulse

    def start(self) -> None:
        """Begins to watch the loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + TICK_S
        self._timer = loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        lag_s = max(loop.time() - self._due, 0.0)
        self.felt(lag_s)
        self._leaves_per_s += 0.2 * (self._left / (TICK_S + lag_s) - self._leaves_per_s)
        self._left = 0
        self._ticks += 1
        if self._memory_limit is not None and self._ticks % 10 == 0:
            self._memory_share = self._rss() / self._memory_limit
        self._due = loop.time() + TICK_S
        self._timer = loop.call_at(self._due, self._tick)

    def felt(self, lag_s: float) -> None:
        """The loop came that late."""
        self.lag_s += 0.3 * (lag_s - self.lag_s)
        if self.lag_s > SLOW_S:
            self.limit = max(FLOOR, min(self.limit, self.in_flight) * max(min(SLOW_S / self.lag_s, 0.9), 0.5))
        elif self.lag_s < QUICK_S:
            self.limit = min(CEILING, self.limit + max(4.0, self.limit * 0.05))
        self._let_in()

    def _let_in(self) -> None:
        """One of each team in turn."""
        for queues in self._waiting:
            while queues and self.in_flight < self.limit:
                team = next(iter(queues))
                queue = queues.pop(team)
                if not queue:
                    continue
                place = queue.popleft()
                self._waits -= 1
                if queue:
                    queues[team] = queue
                if not place.done():
                    self.in_flight += 1
                    place.set_result(None)


def is_patient(policy: Policy, wished: str | None) -> bool:
    """Whether nobody waits for the call, as far as can be told before it is decided on: its class gives time no value."""
    klass = policy.classes.get(wished or policy.default_class)
    return klass is not None and klass.value_usd_per_hour == 0.0


def memory_limit(settings: Settings, workers: int) -> int | None:
    """Bytes that one process may take: the settings' word, else its share of what the system allows; None: not known."""
    if settings.memory_max_mib is not None:
        return settings.memory_max_mib << 20
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text()) // workers
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // workers
    return None


def rss_bytes() -> int:
    """Memory of this process in use; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _refusal(text: str) -> Overloaded:
    return Overloaded(f"{text}; come back in a moment", retry_after_s=1)
