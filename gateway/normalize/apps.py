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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import compress, islice
from operator import not_
from typing import NamedTuple
from zlib import crc32

from gateway.core.patterns import NAMES, Told, skeleton
from gateway.normalize.lines import LINES

_MAX_APPS, _MAX_SKELETONS = 1_000, 512
_VALUES = 3
_SECTION_LINES = 80
_MOST_NEW_LINES, _MOST_NEW_CHARS = 60, 8_000
"""A prompt that changes by more is another prompt, and stays as it is."""
_FIRST, _LAST = 4, 8
"""Lines from either end that have a sign."""
_WORDS, _NO_WORDS = 2, "\0"
"""A line's first words are its sign; one that begins with none is not the last line, whose sign has no words."""


class Known(NamedTuple):
    """Of one system prompt of a conversation: its slots, the lines that stay, and those that left last time."""

    slots: frozenset[int]
    kept: array[int]
    left: frozenset[int]


@dataclass(slots=True)
class App:
    """`values`: name of a skeleton -> the first lines that had it, by name."""

    domain: str = ""
    values: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)
    signs: OrderedDict[int, list[int]] = field(default_factory=OrderedDict)
    """Sign of a line -> how often such a line changed from one turn of a conversation to the next, and how often it did not."""

    def learn(self, seen: Sequence[tuple[int, int]]) -> None:
        """(name of its skeleton, name) of each line that has one."""
        alone: dict[int, int | None] = {}
        for bare, value in seen:
            alone[bare] = None if bare in alone else value
        for bare, one in alone.items():
            if one is None:
                continue
            values = self.values.get(bare)
            if values is None:
                self.values[bare] = {one}
                if len(self.values) > _MAX_SKELETONS:
                    self.values.popitem(last=False)
            elif len(values) < _VALUES:
                values.add(one)

    def varying(self, seen: Sequence[tuple[int, int]]) -> frozenset[int]:
        """Those skeletons among them of which values enough were seen."""
        values = self.values
        return frozenset([bare for bare, _ in seen if bare in values and len(values[bare]) >= _VALUES])

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
    first = list(islice((n for n, line in enumerate(lines) if not line.isspace()), _FIRST))
    after = first[-1] if first else len(lines)
    last = list(islice((n for n in range(len(lines) - 1, after, -1) if not lines[n].isspace()), _LAST))
    for n in first:
        yield n, _sign("first", _head(lines[n]))
    for n in reversed(last):
        yield n, _sign("last", _head(lines[n]))
    if last:
        yield last[0], _sign("last", "")


def _sign(where: str, head: str) -> int:
    return -_name(f"{where}\0{head}") - 1


def _name(text: str) -> int:
    """The same in all processes. Two texts of one name cost a cache hit, never a word: texts are always the request's own."""
    return crc32(text.encode("utf-8", "surrogatepass"))


@lru_cache(4_096)
def _head(line: str) -> str:
    """What a line begins with: its label, or its first words."""
    label, colon, _ = line[:40].partition(":")
    return (skeleton(label if colon else " ".join(line[:200].split()[:_WORDS])) or _NO_WORDS) + colon


class Apps:
    """By isolation domain, model and the start of the system prompt; bounded, least recently used out first."""

    def __init__(self) -> None:
        self._apps: OrderedDict[tuple[str, str, str], App] = OrderedDict()

    def app(self, domain: str, model: str, text: str) -> App:
        key = domain, model, skeleton(text[:80].partition("\n")[0])
        app = self._apps.get(key)
        if app is None:
            app = self._apps[key] = App(domain)
            if len(self._apps) > _MAX_APPS:
                self._apps.popitem(last=False)
        self._apps.move_to_end(key)
        return app


def volatile(app: App, lines: Sequence[str], before: Known | None) -> tuple[list[bool], Known]:
    """Which lines are volatile, and what the conversation's next turn has to know. `before`: what its last turn did; None: it
    begins."""
    names, told = LINES.look(app.domain, lines)
    seen = [(bare, names[n]) for n, (bare, kind, _) in told.items() if bare and kind is None]
    app.learn(seen)
    slots = before.slots if before is not None else app.varying(seen) | app.changing(lines)
    found = [False] * len(lines)
    for n, (bare, kind, _) in told.items():
        found[n] = kind is not None or bare in slots
    if any([sign < 0 for sign in slots]):
        for n, sign in _signs(lines):
            found[n] = found[n] or sign in slots
    _git(lines, told, found)
    if before is not None:
        for n in _new(before.kept, lines, names, found):
            found[n] = True
        app.note(lines, names, found, before)
    if not any(found):
        return found, Known(slots, names, frozenset())
    kept = array(NAMES, compress(names, map(not_, found)))
    return found, Known(slots, kept, frozenset(compress(names, found)))


def _git(lines: Sequence[str], told: Mapping[int, Told], found: list[bool]) -> None:
    """The state of a repository leaves with its heading, up to the next blank line."""
    for n in [n for n, (_, _, heading) in told.items() if heading]:
        for m in range(n, min(n + _SECTION_LINES, len(lines))):
            if m > n and not lines[m].strip():
                break
            found[m] = True


def _new(kept: array[int], lines: Sequence[str], names: array[int], found: Sequence[bool]) -> list[int]:
    """Which of the lines that would stay were not there before; none where that is too much to be called volatile."""
    if kept == names and not any(found):
        return []
    rest = [n for n, gone in enumerate(found) if not gone]
    first, last = 0, 0
    most = min(len(kept), len(rest))
    while first < most and kept[first] == names[rest[first]]:
        first += 1
    while last < most - first and kept[-1 - last] == names[rest[-1 - last]]:
        last += 1
    middle = rest[first : len(rest) - last]
    if not middle or len(middle) > _MOST_NEW_LINES or len(kept) - first - last > _MOST_NEW_LINES:
        return []
    match = SequenceMatcher(None, kept[first : len(kept) - last], [names[n] for n in middle], autojunk=False)
    same = {b + k for _, b, size in match.get_matching_blocks() for k in range(size)}
    changed = [n for place, n in enumerate(middle) if place not in same]
    size = sum([len(lines[n]) for n in changed])
    return changed if size <= _MOST_NEW_CHARS and 2 * size <= sum(map(len, lines)) else []
