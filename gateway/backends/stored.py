"""What providers keep for clients, and which backend keeps it: answers that a later call goes on from, files, batches.

Providers know one key, ours, so without this any team could read what another one stored. Bounded; what was forgotten, or
was stored through another process, is not known here and is left to the provider to find.
"""
from __future__ import annotations

from collections import OrderedDict

from gateway.core.errors import NotFound

MOST = 100_000


class Stored:
    """Id -> (team, backend); the oldest is forgotten first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def keep(self, name: str, team: str, backend: str) -> None:
        self._kept[name] = (team, backend)
        self._kept.move_to_end(name)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def backend(self, name: str, team: str, *, param: str | None = None) -> str | None:
        """Who keeps it; None where that is not known. Raises `NotFound` for what another team stored."""
        found = self._kept.get(name)
        if found is None:
            return None
        if found[0] != team:
            raise NotFound(f"there is no {name[:100]!r} of your team", param=param)
        return found[1]
