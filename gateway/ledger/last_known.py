"""Answers of reports as they were last read: what is shown, marked `as_of`, while the database is away."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

MOST_BYTES = 8 << 20

Question = tuple[str, Mapping[str, str]]
"""Which report, and its words."""


class LastKnown:
    """Bounded, the answer longest not asked for goes first. `scope` is whose figures they are: a team's, or None for all."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._answers: OrderedDict[tuple[str | None, bytes], tuple[str, bytes]] = OrderedDict()

    def keep(self, scope: str | None, question: Question, answer: Any) -> None:
        """The database has just said so."""
        place, packed = (scope, _key(question)), orjson.dumps(answer)
        self._bytes += len(packed) - len(self._answers.pop(place, ("", b""))[1])
        self._answers[place] = (datetime.now(UTC).isoformat(timespec="seconds"), packed)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._answers.popitem(last=False)[1][1])

    def find(self, scope: str | None, question: Question) -> dict[str, Any] | None:
        """The answer with `as_of`, when it was read; None: nobody of that scope has asked this lately."""
        place = (scope, _key(question))
        if place not in self._answers:
            return None
        self._answers.move_to_end(place)
        as_of, packed = self._answers[place]
        return {"as_of": as_of, **orjson.loads(packed)}


def _key(question: Question) -> bytes:
    return orjson.dumps(question, option=orjson.OPT_SORT_KEYS)
