"""What is known of the parts of prompts, by their bytes: a turn pays only for what its team has not sent before.

An agent sends its whole conversation with every call. What the gateway wants to know of a part hangs on its bytes alone, so
it is found out once in a process and looked up afterwards. No text is kept. A part is recognised by its length and Python's
own hash of its bytes, which is keyed by a secret of the process; and by its isolation domain, for what takes less time because
others have sent it would tell that they have.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import msgspec

from gateway.core.errors import BadRequest
from gateway.core.part import NOTHING, Attached, Block, name_of
from gateway.dialects import limits, splice
from gateway.dialects.attached import attached_to, only_words
from gateway.dialects.marking import MARKERS, marked, unmarked

ENTRY_BYTES = 240
MAX_BYTES = 8 * 1024 * 1024
_KEY_BYTES = 8
_HEAVY = 8_192
"""An image in less than so many bytes weighs about what it should."""
_HEAD = ("role", "type")


class _Role(msgspec.Struct):
    role: str = ""
    type: str = ""


class _Message(_Role):
    content: msgspec.Raw = msgspec.Raw()


_role = msgspec.json.Decoder(_Role)
_message = msgspec.json.Decoder(_Message)


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

    def block(self, domain: str, value: bytes, outer: int) -> Block:
        """Raises `BadRequest` for what is not UTF-8 or over a limit; `outer`: levels of JSON around it."""
        key = _hash(value) ^ hash(domain) ^ outer    # what is within limits at one depth may not be at another
        found = self._young.get(key)
        if found is None or found.size != len(value):
            found = self._old.get(key)
            if found is None or found.size != len(value):
                found = checked(value, outer)
            self._keep(key, found)
        return found

    def _keep(self, key: int, found: Block) -> None:
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = found


KNOWN = Blocks()
"""One per process: what it holds are facts about bytes."""


def checked(value: bytes, outer: int) -> Block:
    """What is known of a value that may be over a limit. Raises `BadRequest`."""
    limits.check_text(value)
    places = None
    if len(value) >= limits.FEWEST_BYTES and value.startswith(b"{"):
        with suppress(BadRequest):      # a key twice: all of it counts, whichever of the two is read
            places = splice.spans(value)
    if places is None:
        limits.check_shape(value, outer)
        return fresh(value)
    return _opened(value, places, outer)


def fresh(value: bytes) -> Block:
    """What is known of a value that is within limits."""
    return _named(value, marked(value), attached_to(value) if len(value) >= _HEAVY else None)


def passing(value: bytes) -> Block:
    """The same of one that nobody remembers: it gets its name when it is asked for one."""
    has_marks = marked(value)
    bare = unmarked(value) if has_marks else value
    return Block(0, len(value), len(bare), has_marks, unnamed=bare)


def role_in(message: bytes) -> str:
    """The role of a message; a Responses item without one counts as the assistant's. "" where there is no telling."""
    try:
        return _role_of(_role.decode(message))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def role_and_words(message: bytes) -> tuple[str, bytes | None]:
    """`role_in`, and the text of a message whose content is plain words without escapes; None: look closely."""
    try:
        found = _message.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", None
    raw = bytes(found.content)
    return _role_of(found), raw[1:-1] if raw.startswith(b'"') and b"\\" not in raw else None


def _role_of(found: _Role) -> str:
    return found.role or ("assistant" if found.type else "")


def _opened(value: bytes, places: splice.Spans, outer: int) -> Block:
    """A long message: what of it is text is not searched, for it has neither levels nor markers nor addresses."""
    has_marks = any([marker[1:-1].decode() in places for marker in MARKERS])
    for start, end in places.values():
        if value.startswith((b"[", b"{"), start):
            inner = value[start:end]
            limits.check_shape(inner, outer + 1)
            has_marks = has_marks or marked(inner)
    block = _named(value, has_marks, NOTHING if only_words(value, places) else attached_to(value))
    head = [b'"%b":%b' % (name.encode(), value[slice(*places[name])]) for name in _HEAD if name in places]
    block.role = role_in(b"{%b}" % b",".join(head))
    if value.startswith(b'"', places.get("content", (0, 0))[0]):
        block.content_fetches = False
    return block


def _named(value: bytes, has_marks: bool, held: Attached | None) -> Block:
    bare = unmarked(value) if has_marks else value
    return Block(name_of(bare), len(value), (held or NOTHING).weight(len(bare)), has_marks, attached=held)
