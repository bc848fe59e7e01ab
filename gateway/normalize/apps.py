"""What varies in the system prompts of one app, learnt by comparing its calls.

Three ways show a line to be volatile. Its words do (`patterns.py`). Three values of one skeleton were seen in it, each the
only one of that skeleton in its prompt: a list of like lines is no slot, and a line that an app sends for ever never becomes
one. Or it changed within a conversation: then everything behind it is new to every cache whatever we do, so it leaves at
once, and what the prompt has in common with the one before is the text that stays from then on. Where lines of one sign (near
the start or the end of the prompt, beginning with the same words) changed again and again, a new conversation's leaves too.
"""
from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from gateway.core.patterns import GIT_SECTION, kind_of, skeleton

_MAX_APPS, _MAX_LINES, _MAX_SKELETONS = 1_000, 4_096, 512
_VALUES = 3
_SECTION_LINES = 80
_STABLE = 0
_MOST_NEW_LINES, _MOST_NEW_CHARS = 60, 8_000
"""A prompt that changes by more is another prompt, and stays as it is."""
_FIRST, _LAST = 4, 8
"""Lines from either end that have a sign."""
_WORDS = 2
KEPT = "I"
"""Type of the array in `Known`."""


class Known(NamedTuple):
    """Of one system prompt of a conversation: its slots, the lines that stay, and those that left last time."""

    slots: frozenset[int]
    kept: array[int]
    left: frozenset[int]


@dataclass(slots=True)
class App:
    """`lines`: hash of a line -> hash of its skeleton, `_STABLE` if nothing in it varies, negative if it says so itself."""

    lines: OrderedDict[int, int] = field(default_factory=OrderedDict)
    values: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)
    signs: OrderedDict[int, list[int]] = field(default_factory=OrderedDict)
    """Sign of a line -> how often such a line changed from one turn of a conversation to the next, and how often it did not."""

    def look(self, line: str) -> tuple[int, bool]:
        """(skeleton, volatile by its own words). A known line costs one look-up."""
        name = hash(line)
        known = self.lines.get(name)
        if known is None:
            bare = skeleton(line)
            known = _name(bare) | 1 if "\0" in bare else _STABLE
            if kind_of(line) is not None:
                known = -(_name(bare) | 1)
            self.lines[name] = known
            if len(self.lines) > _MAX_LINES:
                self.lines.popitem(last=False)
        return abs(known), known < 0

    def learn(self, seen: Sequence[tuple[int, int]]) -> None:
        """(skeleton, hash of the line) of each line that has one."""
        count: dict[int, int] = {}
        for bare, _ in seen:
            count[bare] = count.get(bare, 0) + 1
        for bare, value in seen:
            if count[bare] == 1:
                values = self.values.setdefault(bare, set())
                if len(values) < _VALUES:
                    values.add(value)
                if len(self.values) > _MAX_SKELETONS:
                    self.values.popitem(last=False)

    def varies(self, bare: int) -> bool:
        return len(self.values.get(bare, ())) >= _VALUES

    def note(self, lines: Sequence[str], keys: Sequence[int], new: Sequence[bool], before: Known) -> None:
        """A conversation's next turn: which of its lines changed. `new`: those that the turn before had not."""
        if not self.signs and not any(new):
            return
        for n, sign in _signs(lines):
            counts = self.signs.get(sign)
            changed = new[n] and keys[n] not in before.left
            if counts is None and changed:
                counts = self.signs[sign] = [0, 0]
                if len(self.signs) > _MAX_SKELETONS:
                    self.signs.popitem(last=False)
            if counts is not None:
                counts[not changed] += 1

    def changing(self, lines: Sequence[str]) -> frozenset[int]:
        """Signs of lines that will not stay, by experience, where they are the only ones in this prompt."""
        if not self.signs:
            return frozenset()
        found = [sign for _, sign in _signs(lines)]
        return frozenset(
            sign for sign in found
            if (counts := self.signs.get(sign)) and counts[0] >= _VALUES and counts[0] > counts[1] and found.count(sign) == 1
        )  # fmt: skip


def _signs(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(line, sign) near both ends, blank lines aside; below zero, so that a sign is no skeleton's name. The last line has one
    more, whatever it says."""
    said = [n for n, line in enumerate(lines) if not line.isspace()]
    for n in said[:_FIRST]:
        yield n, _sign("first", _head(lines[n]))
    for n in said[max(len(said) - _LAST, _FIRST):]:
        yield n, _sign("last", _head(lines[n]))
    if len(said) > _FIRST:
        yield said[-1], _sign("last", "")


def _sign(where: str, head: str) -> int:
    return -_name(f"{where}\0{head}") - 1


def _name(text: str) -> int:
    """The same in all processes. Two texts of one name cost a cache hit, never a word: texts are always the request's own."""
    return crc32(text.encode("utf-8", "surrogatepass"))


@lru_cache(4_096)
def _head(line: str) -> str:
    """What a line begins with: its label, or its first words."""
    label, colon, _ = line[:40].partition(":")
    return skeleton(label if colon else " ".join(line[:200].split()[:_WORDS])) + colon


class Apps:
    """By isolation domain, model and the start of the system prompt; bounded, least recently used out first."""

    def __init__(self) -> None:
        self._apps: OrderedDict[tuple[str, str, str], App] = OrderedDict()

    def app(self, domain: str, model: str, text: str) -> App:
        key = domain, model, skeleton(text[:80].partition("\n")[0])
        app = self._apps.get(key)
        if app is None:
            app = self._apps[key] = App()
            if len(self._apps) > _MAX_APPS:
                self._apps.popitem(last=False)
        self._apps.move_to_end(key)
        return app


def volatile(app: App, lines: Sequence[str], before: Known | None) -> tuple[list[bool], Known]:
    """Which lines are volatile, and what the conversation's next turn has to know. `before`: what its last turn did; None: it
    begins."""
    keys = [_name(line.rstrip("\n")) for line in lines]
    seen = [app.look(line) for line in lines]
    app.learn([(bare, hash(line)) for line, (bare, own) in zip(lines, seen, strict=True) if bare and not own])
    if before is None:
        slots = frozenset(bare for bare, _ in seen if bare and app.varies(bare)) | app.changing(lines)
    else:
        slots = before.slots
    found = [own or bare in slots for bare, own in seen]
    if any([sign < 0 for sign in slots]):
        for n, sign in _signs(lines):
            found[n] = found[n] or sign in slots
    _git(lines, found)
    if before is not None:
        new = _new(before.kept, lines, keys, found)
        app.note(lines, keys, [own or fresh for own, fresh in zip(found, new, strict=True)], before)
        found = [own or fresh for own, fresh in zip(found, new, strict=True)]
    kept = array(KEPT, [key for key, gone in zip(keys, found, strict=True) if not gone])
    return found, Known(slots, kept, frozenset([key for key, gone in zip(keys, found, strict=True) if gone]))


def _git(lines: Sequence[str], found: list[bool]) -> None:
    """The state of a repository leaves with its heading, up to the next blank line."""
    for n, line in enumerate(lines):
        if ":" in line and GIT_SECTION.match(line.rstrip("\n")):
            for m in range(n, min(n + _SECTION_LINES, len(lines))):
                if m > n and not lines[m].strip():
                    break
                found[m] = True


def _new(kept: array[int], lines: Sequence[str], keys: Sequence[int], found: Sequence[bool]) -> list[bool]:
    """Which of the lines that would stay were not there before; none where that is too much to be called volatile."""
    rest = [n for n, gone in enumerate(found) if not gone]
    new = [False] * len(lines)
    first, last = 0, 0
    most = min(len(kept), len(rest))
    while first < most and kept[first] == keys[rest[first]]:
        first += 1
    while last < most - first and kept[-1 - last] == keys[rest[-1 - last]]:
        last += 1
    middle = rest[first : len(rest) - last]
    if not middle or len(middle) > _MOST_NEW_LINES or len(kept) - first - last > _MOST_NEW_LINES:
        return new
    match = SequenceMatcher(None, kept[first : len(kept) - last], [keys[n] for n in middle], autojunk=False)
    same = {b + k for _, b, size in match.get_matching_blocks() for k in range(size)}
    changed = [n for place, n in enumerate(middle) if place not in same]
    size = sum([len(lines[n]) for n in changed])
    if size <= _MOST_NEW_CHARS and 2 * size <= sum(map(len, lines)):
        for n in changed:
            new[n] = True
    return new
