"""What varies in the system prompts of one app, learnt by comparing its calls.

A line is a slot once three values of one skeleton have been seen in it, each the only one of that skeleton in its prompt:
a list of like lines is no slot, and a line that an app sends for ever never becomes one.
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


@dataclass(slots=True)
class App:
    """`lines`: hash of a line -> hash of its skeleton, `_STABLE` if nothing in it varies, negative if it says so itself."""

    lines: OrderedDict[int, int] = field(default_factory=OrderedDict)
    values: OrderedDict[int, set[int]] = field(default_factory=OrderedDict)

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

    def varies(self, bare: int) -> bool:
        return len(self.values.get(bare, ())) >= _VALUES


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
    seen = [app.look(line) for line in lines]
    app.learn([(bare, hash(line)) for line, (bare, own) in zip(lines, seen, strict=True) if bare and not own])
    slots = frozenset(bare for bare, _ in seen if bare and app.varies(bare)) if frozen is None else frozen
    found = [own or bare in slots for bare, own in seen]
    for n, line in enumerate(lines):
        if ":" in line and GIT_SECTION.match(line.rstrip("\n")):
            for m in range(n, min(n + _SECTION_LINES, len(lines))):
                if m > n and not lines[m].strip():
                    break
                found[m] = True
    return found, slots
