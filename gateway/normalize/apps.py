"""What varies in the system prompts of one app, learnt by comparing its calls.

A line is a slot once three values of one skeleton have been seen in it, each the only one of that skeleton in its prompt:
a list of like lines is no slot, and a line that an app sends for ever never becomes one. So is the place between two known
neighbours where three times, within conversations, a line stood that had never been seen.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.patterns import GIT_SECTION, kind_of, skeleton

_MAX_APPS, _MAX_LINES, _MAX_SKELETONS = 1_000, 4_096, 512
_VALUES = 3
_SECTION_LINES = 80
_STABLE = 0
_MOST_NEW = 4


@dataclass(slots=True)
class App:
    """`lines`: hash of a line -> hash of its skeleton, `_STABLE` if nothing in it varies, negative if it says so itself."""

    lines: OrderedDict[int, int] = field(default_factory=OrderedDict)
    values: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)
    news: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Name of a place between lines -> how often something new stood there in the middle of a conversation."""

    def look(self, line: str) -> tuple[int, bool]:
        """(skeleton, volatile by its own words). A known line costs one look-up."""
        name = hash(line)
        known = self.lines.get(name)
        if known is None:
            bare = skeleton(line)
            known = (hash(bare) & 0x7FFF_FFFF_FFFF) | 1 if "\0" in bare else _STABLE
            if kind_of(line) is not None:
                known = -((hash(bare) & 0x7FFF_FFFF_FFFF) | 1)
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

    def note_news(self, lines: Sequence[str]) -> None:
        """Of a conversation under way: what is new in its prompt, where little is."""
        new = [n for n, line in enumerate(lines) if hash(line) not in self.lines]
        for n in new if len(new) <= _MOST_NEW else ():
            if not {n - 2, n - 1, n + 1}.intersection(new):
                place = between(lines, n)
                self.news[place] = self.news.get(place, 0) + 1
                if len(self.news) > _MAX_SKELETONS:
                    self.news.popitem(last=False)

    def varies(self, bare: int) -> bool:
        return len(self.values.get(bare, ())) >= _VALUES


def between(lines: Sequence[str], n: int) -> int:
    """Names the place of a line by the two before it and the one behind it; below zero, so that it is no skeleton's name."""
    before = lines[n - 1] if n else ""
    return -(hash((lines[n - 2] if n > 1 else "", before, lines[n + 1] if n + 1 < len(lines) else "")) & 0x7FFF_FFFF_FFFF) - 1


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


def volatile(app: App, lines: Sequence[str], frozen: frozenset[int] | None) -> tuple[list[bool], frozenset[int]]:
    """Which lines are volatile, and the slots among them. `frozen`: the slots of a conversation under way, which stay."""
    if frozen is not None:
        app.note_news(lines)
    seen = [app.look(line) for line in lines]
    app.learn([(bare, hash(line)) for line, (bare, own) in zip(lines, seen, strict=True) if bare and not own])
    slots = frozenset(bare for bare, _ in seen if bare and app.varies(bare)) if frozen is None else frozen
    if frozen is None:
        changing = {place for place, times in app.news.items() if times >= _VALUES} if app.news else ()
        slots |= {place for n in range(len(lines)) if changing and (place := between(lines, n)) in changing}
    found = [own or bare in slots for bare, own in seen]
    if any([place < 0 for place in slots]):
        found = [known or between(lines, n) in slots for n, known in enumerate(found)]
    for n, line in enumerate(lines):
        if ":" in line and GIT_SECTION.match(line.rstrip("\n")):
            for m in range(n, min(n + _SECTION_LINES, len(lines))):
                if m > n and not lines[m].strip():
                    break
                found[m] = True
    return found, slots
