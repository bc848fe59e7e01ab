"""By when a call must be answered: the least of what its class, its client and its client's library say.

Of a stream it is the first byte that must be there by then, of any other answer all of it. A library that gives up after its
read time-out says so in `x-stainless-read-timeout`; half a second before that the client still gets an answer it can read, and
earlier where the event loop is late: what is done when the time is up is late as well.
"""
from __future__ import annotations

from collections.abc import Mapping

HEADER = "x-stainless-read-timeout"
LEAST_S = 0.2
"""No attempt is begun with less left, or with less than half of what the call was allowed where that is shorter."""
_BEFORE_CLIENT_S = 0.5
DISK_S = 0.1
"""Beyond the deadline: how long the disk may take to book what is answered then."""
LOOK_S = 0.1
"""How often it is looked at how late the loop is, in the time in which that matters."""
_TURNS, _MOST_EARLY_S = 5.0, 1.0
"""So many late turns of the loop lie between the end of a call's time and its answer; the most that is kept for them."""


def allowed_s(headers: Mapping[str, str], class_ms: float | None, asked_ms: float | None) -> float | None:
    """Seconds from the call's arrival on; None: no deadline. `asked_ms`: the client's, if its team may name one."""
    found = [ms / 1e3 for ms in (class_ms, asked_ms) if ms is not None]
    text = headers.get(HEADER)
    if text is not None:
        seconds = _seconds(text)
        if seconds is not None:
            found.append(max(seconds - _BEFORE_CLIENT_S, seconds / 2))
    return min(found) if found else None


def early_s(came_s: float, deadline_s: float, late_s: float = _MOST_EARLY_S) -> float:
    """How long before its deadline a call's time is up while the loop is so late; never more than a third of its time."""
    return min(_TURNS * late_s, _MOST_EARLY_S, (deadline_s - came_s) / 3)


def too_late(now_s: float, came_s: float, deadline_s: float) -> bool:
    """Whether no attempt is begun any more; all on the monotonic clock."""
    return deadline_s - now_s < min(LEAST_S, (deadline_s - came_s) / 2)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None
