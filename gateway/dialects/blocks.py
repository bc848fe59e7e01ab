"""What is known of the parts of prompts, by their bytes: a turn pays only for what nobody has sent before.

An agent sends its whole conversation with every call. What the gateway wants to know of a part hangs on its bytes alone, so
it is found out once in a process and looked up afterwards. No text is kept, nor whose it was. A part is recognised by its
length and Python's own hash of its bytes, which is keyed by a secret of the process.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256

from gateway.core.errors import BadRequest
from gateway.core.part import Block
from gateway.dialects import limits, splice
from gateway.dialects.marking import marked, unmarked

ENTRY_BYTES = 320
MAX_BYTES = 16 * 1024 * 1024
_KEY_BYTES, _SPARE_BITS = 8, 4


def _strong(value: bytes) -> int:
    return int.from_bytes(sha256(value).digest()[:_KEY_BYTES])


_hash: Callable[[bytes], int] = hash if os.environ.get("PYTHONHASHSEED", "random") == "random" else _strong


class Blocks:
    """Bounded; what was not seen for longest goes first, half of it at once."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.resize(max_bytes)
        self.clear()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def clear(self) -> None:
        """Forgets all."""
        self._young: dict[int, Block] = {}
        self._old: dict[int, Block] = {}

    def resize(self, max_bytes: int) -> None:
        self._most = max(max_bytes // ENTRY_BYTES // 2, 1)

    def block(self, value: bytes, outer: int) -> Block:
        """Raises `BadRequest` for what is not UTF-8 or over a limit; `outer`: levels of JSON around it."""
        key = _hash(value) ^ outer    # what is within limits at one depth may not be at another
        found = self._young.get(key)
        if found is None or found.size != len(value):
            found = self._old.get(key)
            if found is None or found.size != len(value):
                check(value, outer)
                found = fresh(value)
            self._keep(key, found)
        return found

    def _keep(self, key: int, found: Block) -> None:
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = found


KNOWN = Blocks()
"""One per process: what it holds are facts about bytes."""


def fresh(value: bytes) -> Block:
    """What its bytes say, found out now; they are within limits."""
    bare, has_marks = value, marked(value)
    if has_marks:
        bare = unmarked(value)
    name = int.from_bytes(sha256(bare).digest()[:_KEY_BYTES]) >> _SPARE_BITS
    return Block(name, len(value), len(bare), has_marks)


def check(value: bytes, outer: int) -> None:
    """Raises `BadRequest`; of a long message only what is no text is looked through."""
    limits.check_text(value)
    if len(value) < limits.FEWEST_BYTES or value[:1] != b"{":
        limits.check_shape(value, outer)
        return
    try:
        places = splice.spans(value)
    except BadRequest:              # a key twice: all of it counts
        limits.check_shape(value, outer)
        return
    for start, end in places.values():
        if value[start:start + 1] in (b"[", b"{"):
            limits.check_shape(value[start:end], outer + 1)
