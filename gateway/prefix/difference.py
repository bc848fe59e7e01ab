"""Where two forms of one part begin to differ, and what kind of difference it is.

The earlier form is known by its outline only. Its pieces give the range; what varies by nature (`core/patterns.py`) narrows
it, and the digests that still agree tell a change of form from one of text. Places are a JSON Pointer to a text and
characters in it, as the app that made the request would count them.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import orjson

from gateway.core.patterns import MASKED, heads_state, kind_of
from gateway.prefix.outline import Looked, Outline, look, no_pause, same_ends

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
_BILLING = "x-anthropic-billing-header:"
_MORE_LINES, _STATE_LINES = 12, 80


class Difference(NamedTuple):
    """`start:end` are characters of the text at `path`; 0:0 stands for the whole of it."""

    kind: str
    path: str
    start: int
    end: int


class _Leaf(NamedTuple):
    path: str
    start: int
    end: int


def between(
    old: Outline, value: bytes, path: str, *, talk: bool, look: Callable[[bytes], Looked] = look,
    pause: Callable[[], None] = no_pause,
) -> Difference:  # fmt: skip
    """`value` is the part's JSON as it is now; `talk`: it is a message behind the first part; `pause`: see `outline.look`."""
    new, now, hashes = look(value)
    pause()
    first, last = same_ends(old.pieces, hashes)
    start = sum(map(len, now[:first]))
    end = len(value) - sum(map(len, now[len(now) - last:])) if last else len(value)
    leaf = _leaf(value, path, start, max(end, start + 1))
    if leaf is None or new.form == old.form:
        return Difference("json_form", path if leaf is None else leaf.path, 0, 0)
    pause()
    text = _text(value[leaf.start:leaf.end])
    pause()
    a = _character(value, leaf, start)
    pause()
    b = _character(value, leaf, min(max(end, start), leaf.end))
    pause()
    where = a, max(a, min(b, len(text)))
    if new.plain == old.plain:
        return Difference("unicode", leaf.path, *where)
    if new.words == old.words:
        return Difference("whitespace", leaf.path, *where)
    kind, where = _kind(text, *where, framed=new.frame == old.frame)
    if kind is None:
        kind = _edit(old, first, last, talk)
    return Difference(kind, leaf.path, *where)


def _edit(old: Outline, first: int, last: int, talk: bool) -> str:
    if talk:
        return "history_edit"
    return "appended" if first and first + last >= len(old.pieces) // 2 - 1 and last <= 1 else "edit"


def _kind(text: str, start: int, end: int, *, framed: bool) -> tuple[str | None, tuple[int, int]]:
    """What varies by nature in the range, and its exact place; None for a change that somebody made."""
    begin = text.rfind("\n", 0, start) + 1
    lines, at = [], begin
    for line in text[begin:].split("\n", _MORE_LINES)[:_MORE_LINES]:
        lines.append((at, line))
        at += len(line) + 1
        if at > end:
            break
    for at, line in lines:
        if _BILLING in line:
            return "billing", (at, at + len(line))
    for at, line in lines:
        kind = kind_of(line)
        if kind is not None:
            return kind, _narrow(line, at, start, end)
    if _in_git_section(text, begin):
        return "git", (start, end)
    if framed:
        at, line = lines[0]
        kind = "counter" if re.search(r"(?<![\w.])\d{1,6}(?![\w.])", text[start:end]) else "id"
        return kind, _narrow(line, at, start, end)
    return None, (start, end)


def _narrow(line: str, at: int, start: int, end: int) -> tuple[int, int]:
    """The varying words of the line that lie in the range."""
    words = [(at + word.start(), at + word.end()) for word in MASKED.finditer(line)]
    found = [(a, b) for a, b in words if b > start and a < max(end, start + 1)]
    return (found[0][0], found[-1][1]) if found else (start, max(end, start))


def _in_git_section(text: str, begin: int) -> bool:
    for line in reversed(text[:begin].rsplit("\n", _STATE_LINES)[-_STATE_LINES:-1]):
        if not line.strip():
            return False
        if heads_state(line) or kind_of(line) == "git":
            return True
    return False


def _leaf(value: bytes, path: str, start: int, end: int) -> _Leaf | None:
    """The text that the range covers most of."""
    reached = [leaf for leaf in _leaves(value, path) if leaf.end > start and leaf.start < end]
    return max(reached, key=lambda leaf: min(leaf.end, end) - max(leaf.start, start), default=None)


def _leaves(value: bytes, path: str) -> Iterator[_Leaf]:
    """Every text, number and word of a JSON value with its place, keys aside."""
    stack: list[list[object]] = []   # [is list, index or key, a value comes next]
    key: bytes | None = None
    for found in _TOKEN.finditer(value):
        token = found[0]
        if token in (b"{", b"["):
            stack.append([token == b"[", 0, token == b"["])
        elif token in (b"}", b"]"):
            stack.pop()
        elif token == b",":
            top = stack[-1]
            if top[0]:
                top[1] = int(str(top[1])) + 1
            else:
                top[2] = False
        elif token == b":":
            stack[-1][1], stack[-1][2] = orjson.loads(key or b'""'), True
        elif stack and not stack[-1][2]:
            key = token
        else:
            yield _Leaf(path + "".join(f"/{_escaped(step[1])}" for step in stack), found.start(), found.end())


def _escaped(step: object) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _text(literal: bytes) -> str:
    try:
        found = orjson.loads(literal)
    except orjson.JSONDecodeError:
        return ""
    return found if isinstance(found, str) else literal.decode("utf-8", "replace")


def _character(value: bytes, leaf: _Leaf, at: int) -> int:
    """Bytes from the start of a JSON text to characters of what it says."""
    inner = value[leaf.start + 1:max(at, leaf.start + 1)]
    if len(inner) and inner.endswith(b"\\") and not inner.endswith(b"\\\\"):
        inner = inner[:-1]
    try:
        return len(orjson.loads(b'"' + inner.rstrip(b'"') + b'"'))
    except orjson.JSONDecodeError:
        return len(inner.decode("utf-8", "ignore"))
