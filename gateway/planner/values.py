"""What goes into the planner and what comes out of it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gateway.planner.caches import CacheRules
from gateway.planner.heads import Head
from gateway.planner.places import Page
from gateway.planner.reuse import Came, Chance, Whose


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose experience counts: the isolation domain, the client's name."""

    domain: str
    client: str


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the request goes. `pool`: what shares one cache."""

    provider: str
    model: str
    tier: str | None
    pool: str


SHARED = frozenset({"tools", "head", "system"})
"""Kinds of places that many conversations have in common."""


class Asked(NamedTuple):
    """One attempt. `first`: the call's first, from which reuse is learnt; `whose` experience counts."""

    page: Page
    asker: Asker
    backend: Backend
    rules: CacheRules
    now_us: int
    first: bool
    whose: Whose


class Sight(NamedTuple):
    """What was seen of a prompt before: which of its prefixes had been asked for, up to which part its pool has it, whether its
    conversation is under way, and of what kind its end is."""

    came: Came
    held: int
    under_way: bool
    end_kind: str


class Stored(NamedTuple):
    """A prefix that is stored when the answer has begun."""

    key: int
    life_s: float
    tokens: int


class Warm(NamedTuple):
    """What keeping the prompt's prefix stored for longer is about: its lifetime, what it costs to read it once, what is saved
    by reading it where it would be written anew, dollars, and how soon it is asked for again."""

    life_s: float
    read_usd: float
    saved_usd: float
    chance: Chance


class Life(NamedTuple):
    """A lifetime that a prefix may be written for, by the provider's name for it, and what writing it costs."""

    name: str
    seconds: float
    write_usd: float


class Beginning(NamedTuple):
    """What stands before a conversation's first words, as far as other conversations had it too. `name` stands for it in its
    pool, `first` is the prompt's first part behind it, `saved_usd` what a call saves that reads it and need not write it."""

    name: int
    tokens: int
    first: int
    lives: tuple[Life, ...]
    saved_usd: float


class Stake(NamedTuple):
    """One call's entry, to be put right by the provider's counts. `habit` and `planned`: what it was expected to cost."""

    name: str
    tokens: int
    habit: float
    planned: float
    read: float
    writes: Mapping[str, float]
    by_habit: bool = False
    """Nothing is planned, and the provider has what it would have without plans: what is counted is what the habit costs."""

    def counted(self, input_tokens: int, read_tokens: int, written: Mapping[str, int]) -> float:
        """What the call has cost."""
        short = next(iter(self.writes.values()), 1.0)
        paid = sum([tokens * self.writes.get(life, short) for life, tokens in written.items()])
        return input_tokens - read_tokens - sum(written.values()) + read_tokens * self.read + paid


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What to set in the request, and what will then be stored where."""

    fields: Mapping[str, msgspec.Raw | None]
    receipts: Sequence[Mapping[str, object]]
    pool: str
    stored: Sequence[Stored] = ()
    """Each prefix that is marked, or stored by the provider's own habit, in rendered order."""
    held: int = 0
    """Key of the prefix that should be read; 0: none."""
    held_tokens: int = 0
    """Up to where the pool has it, as far as is known; found out only where there are other processes."""
    end_bytes: int = 0
    rules: CacheRules
    model: str = ""
    saving_usd: float = 0.0
    """Per token that is read and not written."""
    diagnosed: bool = False
    """Whether the provider is asked why its cache missed, if it does."""
    warm: Warm | None = None
    """Set where the provider lets a prefix be asked for without output."""
    beginning: Beginning | None = None
    """Set for a conversation's first call, where it may be written ahead of others."""
    page: Page | None = None
    """The request that begins with it."""
    head: Head | None = None
    """Set where it may be stored as an object, or is."""
    object: str | None = None
    """The object that it reads."""
    stake: Stake | None = None
    """What it adds to the account of its client; None: it is not in one."""
