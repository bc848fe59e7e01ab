"""Caches that are written where the request says so: Anthropic, Bedrock, Qwen's explicit mode, OpenAI from 5.6 on.

Anthropic's rules (Bedrock's and Qwen's are the same with other numbers): at most four marks; a mark reads the last entry
within 20 positions before it; everything up to the furthest hit is read, then the part up to the last long mark is a long
write, the rest up to the last mark a short one; an entry that is read starts its lifetime again; an entry can be read once
the answer that wrote it has begun; long lifetimes stand before short ones; a prefix below the minimum is not stored,
silently.

Left open by the documentation, and read the dearer way: a mark inside what was read makes no entry of its own, and an entry
keeps the lifetime that it was written with.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.providers.prompt import Block, Prompt, Refused

NEVER_READY = float("inf")


@dataclass(slots=True)
class Entry:
    ttl: str
    until_s: float
    ready_s: float
    """From when on it can be read."""


@dataclass(slots=True)
class Used:
    """What the provider counted of one prompt; the three parts never overlap."""

    read: int = 0
    written: dict[str, int] = field(default_factory=dict)
    uncached: int = 0
    entries: list[Entry] = field(default_factory=list, repr=False)
    explicit: bool = False
    """Served under the rates for marked prompts (Qwen)."""
    cached_object: str | None = None

    @property
    def total(self) -> int:
        return self.read + sum(self.written.values()) + self.uncached

    def begun(self, at_s: float) -> None:
        """The answer has begun: what it wrote can be read."""
        for entry in self.entries:
            entry.ready_s = min(entry.ready_s, at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRules:
    """Numbers of one provider."""

    ttls: Mapping[str, float]
    """Lifetime by the name that requests use, seconds, short ones first; the first is the default."""
    minimum: int = 1024
    most_marks: int = 4
    lookback: int = 20
    """Positions before a mark, its own included, where it looks for an entry."""
    too_many: str = "refuse"
    """`refuse`, or `last`: only the last ones are written."""
    ordered: bool = True
    """Long lifetimes must stand first."""


class MarkedCache:
    """Entries of all isolation domains of a provider."""

    def __init__(self, rules: MarkRules) -> None:
        self.rules = rules
        self._entries: dict[tuple[str, bytes], Entry] = {}

    def serve(self, domain: str, prompt: Prompt, at_s: float) -> Used:
        """Counts one prompt and stores what it marks. Raises `Refused`."""
        marks = self._checked(prompt)
        hit = -1
        for index in marks:
            found = self._look_back(domain, prompt.blocks, index, at_s)
            hit = max(hit, found)
        return self._used(domain, prompt, [index for index in marks if index > hit], hit, at_s)

    def holds(self, domain: str, digest: bytes, at_s: float) -> bool:
        """Whether the prefix of that name can be read now."""
        entry = self._entries.get((domain, digest))
        return entry is not None and entry.ready_s <= at_s < entry.until_s

    def _checked(self, prompt: Prompt) -> list[int]:
        rules, marks = self.rules, prompt.marked
        if len(marks) > rules.most_marks:
            if rules.too_many == "refuse":
                raise Refused(f"A maximum of {rules.most_marks} blocks with cache_control may be provided. Found {len(marks)}.")
            marks = marks[-rules.most_marks :]
        ttls = [self._ttl(prompt.blocks[index]) for index in marks]
        lives = [rules.ttls[ttl] for ttl in ttls]
        if rules.ordered and lives != sorted(lives, reverse=True):
            raise Refused("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")
        return marks

    def _ttl(self, block: Block) -> str:
        ttl = next(iter(self.rules.ttls)) if block.mark == "default" else block.mark or ""
        if ttl not in self.rules.ttls:
            raise Refused(f"cache_control.ttl: {ttl!r} is not supported; use one of {', '.join(self.rules.ttls)}")
        return ttl

    def _look_back(self, domain: str, blocks: Sequence[Block], index: int, at_s: float) -> int:
        """The last block with an entry within reach of the mark at `index`, whose lifetime starts again; -1: none."""
        reach = blocks[index].position - self.rules.lookback
        for place in range(index, -1, -1):
            if blocks[place].position <= reach:
                break
            entry = self._entries.get((domain, blocks[place].digest))
            if entry is not None and entry.ready_s <= at_s < entry.until_s:
                entry.until_s = at_s + self.rules.ttls[entry.ttl]
                return place
        return -1

    def _used(self, domain: str, prompt: Prompt, marks: Sequence[int], hit: int, at_s: float) -> Used:
        blocks = prompt.blocks
        used = Used(read=blocks[hit].tokens if hit >= 0 else 0)
        done = used.read
        for index in marks:
            if blocks[index].tokens < self.rules.minimum:
                continue
            ttl = self._ttl(blocks[index])
            used.written[ttl] = used.written.get(ttl, 0) + blocks[index].tokens - done
            done = blocks[index].tokens
            entry = Entry(ttl, at_s + self.rules.ttls[ttl], NEVER_READY)
            self._entries[domain, blocks[index].digest] = entry
            used.entries.append(entry)
        used.uncached = prompt.tokens - done
        return used
