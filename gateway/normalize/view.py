"""What a pass sees of a request, and how it says what it wants changed."""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from gateway.core.part import Part
from gateway.dialects.blocks import KNOWN
from gateway.dialects.parts import Conversation, parts
from gateway.dialects.splice import Edit, Spans, shifted, splice

if TYPE_CHECKING:
    from gateway.normalize.memory import Memory, Session

Change = tuple[str, int, int, bytes]
"""(JSON Pointer, start, end, new bytes); changes of one pass do not overlap."""
Pass = Callable[["Memory", "Session", "View"], Sequence[Change]]


class Unreadable(Exception):
    """This request has a shape that the pass does not know: it is left as it came."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place, self.why = place, why


def _never() -> bool:
    return False


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `native` tells whether a lane may serve it that takes the client's own billing header."""

    domain: str
    level: str
    dialect: str
    model: str
    body: bytes
    spans: Spans
    order: Sequence[str]
    parts: Sequence[Part]
    talk: Conversation
    switches: Mapping[str, bool] = {}
    headers: Mapping[str, str] = {}
    native: Callable[[], bool] = _never

    def edited(self, edits: Sequence[Edit]) -> View:
        """The same after edits, each within one field's value. Raises `Unreadable` where they overlap."""
        ordered = sorted(edits)
        if any(one[1] > other[0] for one, other in pairwise(ordered)):
            raise Unreadable("", "its changes would overlap")
        body, spans = splice(self.body, edits), shifted(self.spans, edits)
        found = _moved(self.domain, self.parts, ordered, body) or parts(body, spans, self.order, self.domain)
        gone = len(self.parts) - len(found)
        talk = self.talk
        if gone:
            talk = replace(talk, first=max(talk.first - gone, 0), last=max(talk.last - gone, 0))
        return replace(self, body=body, spans=spans, parts=found, talk=talk)


def _moved(domain: str, before: Sequence[Part], edits: Sequence[Edit], body: bytes) -> list[Part] | None:
    """The parts where they stand in the edited body; only those that an edit lies in are looked at again. None: an edit takes
    a part away whole, or reaches beyond it."""
    starts = [start for start, _, _ in edits]
    shifts = [0, *accumulate([len(new) - (end - start) for start, end, new in edits])]
    found, touched = [], 0
    for part in before:
        first, last = bisect_left(starts, part.start), bisect_left(starts, part.end)
        start, end, block = part.start + shifts[first], part.end + shifts[last], part.block
        if first < last:
            touched += last - first
            if edits[last - 1][1] > part.end or (edits[first][0] == part.start and edits[first][1] == part.end):
                return None
            block = KNOWN.block(domain, body[start:end], 1 if part.item < 0 else 2)
        found.append(Part(start, end, part.field, part.item, block))
    return found if touched == len(edits) else None
