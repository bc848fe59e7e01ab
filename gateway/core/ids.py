"""Names of what is made here: sortable by time, unguessable in their second half."""
from __future__ import annotations

import os

_AT_ONCE = 256
_random: list[str] = []
"""Drawn and not used yet: a system call for each would be the dearest part of an id."""
os.register_at_fork(after_in_child=_random.clear)


def new_id(prefix: str, at_us: int) -> str:
    """`at_us`: when, microseconds since the epoch."""
    try:
        unguessable = _random.pop()
    except IndexError:
        drawn = os.urandom(8 * _AT_ONCE).hex()
        _random.extend([drawn[n : n + 16] for n in range(0, len(drawn), 16)])
        unguessable = _random.pop()
    return f"{prefix}{at_us // 1_000:011x}{unguessable}"
