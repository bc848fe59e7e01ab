"""How many calls are served at once: as many as the event loop keeps up with; the rest waits a moment or comes back.

Two measures. In one turn of the loop only so many calls begin as it serves in a few milliseconds: whatever else is ready then
has its turn soon, a refusal too. And the loop's own lag: a timer that is due every 50 ms and comes late says that there is
more to do than time to do it. The number of calls in flight then shrinks below what it is, and grows again while the lag is
small, as in TCP. Streams that wait for their model cost no time, so thousands may be open.

Who waits is served before what nobody waits for, and of those who wait each team in turn, so that one that sends too much
delays only itself. A burst is served, and so are clients of which each waits for its answer before it asks again: they wait.
Once a queue is full, and as long as more comes than leaves, only few may wait, for a moment, and all others are refused at
once, before they are read: what is refused must cost little. Nobody waits then behind those who go first. Memory near its limit
refuses the patient first, then all that is new. Health and metrics never come here.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gateway.core.errors import Overloaded
from gateway.settings import Settings
from router_policies.rules import Policy

TICK_S = 0.05
EXCESS = 1.1
"""The gateway sheds calls from when a queue was full until no more than that many times as many come as leave."""
TURN_S, ALONE_TURN_S, LEAST_STARTS, BUSY = 0.002, 0.016, 2, 0.7
"""As many calls begin in one turn of the loop as are served in that time; a few always may. The longer one costs less of the
processor for each call, but what begins in it goes out together at its end. So it holds only while the loop works for more than
that share of the time, all that waited lately was of one team, and nothing is refused."""
SLOW_S, QUICK_S = 0.1, 0.03
FLOOR, CEILING = 256, 12_000
QUEUE_S, LEAST_QUEUE, WAIT_S = 0.005, 8, 0.01
"""While it sheds: as many calls of a team may wait as leave within `QUEUE_S` (a few always may), and none for longer than
`WAIT_S`; `FEW` may wait longer, for their team's turn comes soon and is only kept by what holds the loop up."""
FEW, FEW_WAIT_S = 4, 0.04
MOST_QUEUE, MOST_WAIT_S, _LOOK_S = 256, 5.0, 0.01
"""The same while it does not, for each team; how often it is looked at. While the process stands still nobody waits."""
_PERIOD_TICKS = 20
_FADES = 0.5 ** (1 / _PERIOD_TICKS)
_BATCH_SHARE, _ALL_SHARE = 0.80, 0.95
_STATM = Path("/proc/self/statm")
_PAGE = 4096
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

Go = Callable[[Overloaded | None], None]
"""What is called when a call that waited has its place, or has waited too long."""


_Queues = dict[str, deque[tuple[float, Go]]]
"""Team -> its calls that wait, each with the monotonic time since when; the team whose turn it is stands first."""


class Admission:
    """One per process. `may_enter`, else `queue` before a call, `leave` after it."""

    def __init__(
        self, memory_limit_bytes: int | None = None, rss: Callable[[], int] | None = None,
        worked_s: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        """`worked_s`: how long the loop's thread has had the processor."""
        self.limit = float(CEILING)
        self.in_flight = 0
        self.lag_s = 0.0
        self.late_s = 0.0
        """How late the loop came at worst; half of it is forgotten in a second."""
        self._memory_limit = memory_limit_bytes
        self._rss = rss or rss_bytes
        self._memory_share = 0.0
        self._queues: tuple[_Queues, _Queues] = ({}, {})
        self._waits = 0
        self._starts = 0
        """In this turn of the loop."""
        self._most_starts = LEAST_STARTS
        self._teams = set[str]()
        """Who has waited lately."""
        self._shared_until = 0
        """Up to that tick more than one team counts as waiting."""
        self._turning = self._expiring = False
        self.sheds = False
        """More comes than leaves: only few may wait, and all others are refused at once."""
        self._came = self._left = 0
        self._comes_per_s = self._leaves_per_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._look_due = 0.0
        self._stood_s = 0.0
        """How long the process stood still in all while calls waited."""
        self._ticks = 0
        self._worked_s = worked_s
        self._had_worked_s = 0.0
        self._busy = 0.0
        """The share of the time in which the loop works, lately."""

    def may_enter(self) -> bool:
        """The quick way in. False: the call has to `queue`, or is to be refused."""
        self._came += 1
        if (
            self._waits or self.in_flight >= self.limit or self._starts >= self._most_starts
            or self._memory_share > _BATCH_SHARE
        ):  # fmt: skip
            return False
        self._began()
        return True

    def queue(self, team: str, go: Go, *, patient: bool, most_s: float | None = None) -> None:
        """Calls `go` when there is a place, at once or later, or with a refusal; after `most_s` at the latest, where the caller
        waits no longer. Raises `Overloaded` where the call would wait too long, or memory says no."""
        if self._memory_share > _BATCH_SHARE and (patient or self._memory_share > _ALL_SHARE):
            raise _refusal("the gateway is short of memory")
        queues, now = self._queues[patient], time.monotonic() - self._stood_s
        if self._is_full(team, patient=patient):
            self.sheds = True
            raise overloaded()
        queues.setdefault(team, deque()).append(waits := (now, go))
        if most_s is not None and most_s < MOST_WAIT_S:
            asyncio.get_running_loop().call_later(max(most_s, 0.0), self._give_up, queues, team, waits)
        self._teams.add(team)
        self._waits += 1
        if not self._expiring:
            self._look_soon()
        if self._starts < self._most_starts:
            self._let_in()

    def refuses(self, team: str, *, patient: bool) -> bool:
        """Whether a call that comes now would be refused at once because the gateway sheds; then it counts as one that came."""
        if not (self.sheds and self._is_full(team, patient=patient)):
            return False
        self._came += 1
        return True

    def _is_full(self, team: str, *, patient: bool) -> bool:
        """Whether a call would wait in vain. Nobody waits behind those who go first while these are too many themselves."""
        if patient and self.sheds and self._queues[False]:
            return True
        queues = self._queues[patient]
        return len(queues.get(team, ())) >= self._most(len(queues))

    def _most(self, teams: int) -> float:
        """How many calls of a team may wait."""
        return max(self._leaves_per_s * QUEUE_S / max(teams, 1), LEAST_QUEUE) if self.sheds else MOST_QUEUE

    async def wait(self, team: str = "", *, patient: bool) -> None:
        """`queue` for a coroutine: returns with a place, or raises `Overloaded`."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go(refusal: Overloaded | None) -> None:
            if place.done():        # whoever waited has been cancelled
                if refusal is None:
                    self.leave()
            elif refusal is None:
                place.set_result(None)
            else:
                place.set_exception(refusal)

        self.queue(team, go, patient=patient)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:  # it came at the last moment
                self.leave()
            raise

    def leave(self) -> None:
        """The call is over; the next one that waits comes in."""
        self.in_flight -= 1
        self._left += 1
        if self._waits and self._starts < self._most_starts:
            self._let_in()

    def _began(self) -> None:
        self.in_flight += 1
        self._starts += 1
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """The loop has come round: what was ready has been served."""
        self._turning, self._starts = False, 0
        if self._waits:
            self._let_in()

    def _let_in(self) -> None:
        """One of each team in turn, as many as may begin now."""
        for queues in self._queues:
            while queues and self.in_flight < self.limit and self._starts < self._most_starts:
                team, queue = next(iter(queues.items()))
                _, go = queue.popleft()
                if not queue:
                    del queues[team]
                elif len(queues) > 1:
                    queues[team] = queues.pop(team)
                self._waits -= 1
                self._began()
                go(None)

    def _give_up(self, queues: _Queues, team: str, waits: tuple[float, Go]) -> None:
        """Whoever asked waits no longer, if it still does."""
        queue = queues.get(team, ())
        if waits in queue:
            queues[team].remove(waits)
            self._waits -= 1
            if not queue:
                del queues[team]
            waits[1](overloaded())

    def _expire(self) -> None:
        """Refuses those whose time is up, the first of each team, and looks again soon."""
        now = time.monotonic()
        if (late_s := now - self._look_due) > TICK_S:
            self._stood_s += late_s
        now -= self._stood_s
        for queues in self._queues:
            for team, queue in list(queues.items()):
                while queue and queue[0][0] <= now - self._longest_s(len(queue)):
                    self._waits -= 1
                    queue.popleft()[1](overloaded())
                if not queue:
                    queues.pop(team, None)
        self._expiring = False
        if self._waits:
            self._look_soon()

    def _longest_s(self, waiting: int) -> float:
        """How long a call may wait that has so many of its team behind it, itself included."""
        if not self.sheds:
            return MOST_WAIT_S
        return FEW_WAIT_S if waiting <= FEW else WAIT_S

    def _look_soon(self) -> None:
        self._expiring, self._look_due = True, time.monotonic() + _LOOK_S
        asyncio.get_running_loop().call_later(_LOOK_S, self._expire)

    # the loop's pulse

    def start(self) -> None:
        """Begins to watch the loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + TICK_S
        self._had_worked_s = self._worked_s()
        self._timer = loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        lag_s = max(loop.time() - self._due, 0.0)
        self.felt(lag_s)
        self._leaves_per_s += 0.2 * (self._left / (TICK_S + lag_s) - self._leaves_per_s)
        self._comes_per_s += 0.2 * (self._came / (TICK_S + lag_s) - self._comes_per_s)
        worked_s = self._worked_s()
        self._busy += 0.2 * ((worked_s - self._had_worked_s) / (TICK_S + lag_s) - self._busy)
        self._had_worked_s = worked_s
        self._came = self._left = 0
        self.sheds = self.sheds and self._comes_per_s > EXCESS * self._leaves_per_s
        self._ticks += 1
        self._most_starts = max(LEAST_STARTS, int(self._leaves_per_s * self._turn_s()))
        if self._memory_limit is not None and self._ticks % 10 == 0:
            self._memory_share = self._rss() / self._memory_limit
        self._due = loop.time() + TICK_S
        self._timer = loop.call_at(self._due, self._tick)

    def _turn_s(self) -> float:
        if len(self._teams) > 1:
            self._shared_until = self._ticks + _PERIOD_TICKS
        if len(self._teams) > 1 or self._ticks % _PERIOD_TICKS == 0:
            self._teams.clear()
        return ALONE_TURN_S if self._busy > BUSY and self._ticks >= self._shared_until and not self.sheds else TURN_S

    def felt(self, lag_s: float) -> None:
        """The loop came that late."""
        self.lag_s += 0.3 * (lag_s - self.lag_s)
        self.late_s = max(lag_s, self.late_s * _FADES)
        if self.lag_s > SLOW_S:
            self.limit = max(FLOOR, min(self.limit, self.in_flight) * max(min(SLOW_S / self.lag_s, 0.9), 0.5))
        elif self.lag_s < QUICK_S:
            self.limit = min(CEILING, self.limit + max(4.0, self.limit * 0.05))
        if self._waits:
            self._let_in()


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


def overloaded() -> Overloaded:
    """What a call is told for which there is no time."""
    return _refusal("the gateway is overloaded")


def _refusal(text: str) -> Overloaded:
    return Overloaded(f"{text}; come back in a moment", retry_after_s=1)
