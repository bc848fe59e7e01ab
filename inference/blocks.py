"""Blocks of 16 tokens, shared by prefix: a hash chain, reference counts, and the order in which free blocks are reused.

A full block is known by the hash of its parent's hash and its tokens; the first parent is made of the model and the
request's salt, so requests with other salts or weights never meet. A hit also compares tokens, parent and salt: a
collision is a miss, not somebody else's data. A parent is never evicted before its cached child: whoever holds a child
holds its parents, and a request's blocks are freed tail first.

No salt (a team, behind the gateway) pushes the others out: where blocks lack, one whose idle blocks exceed its `share`
of the pool loses its oldest first; as long as nobody else needs them it may fill the pool.

What is evicted may go to a `Lower` tier and come back from there on a hit. Events tell what can be hit, wherever it lies.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from inference.eviction import FairOrder

BLOCK = 16
_KEPT_EVENTS = 10_000

Hash = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A block can now be hit."""

    sequence: int
    block_hash: bytes
    parent_hash: bytes
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block was evicted."""

    sequence: int
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was emptied."""

    sequence: int


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Entry:
    """What a cached block holds. `id` names it for as long as it can be hit; `parent` is one, or a first block's salt."""

    id: int
    block_hash: bytes
    parent_hash: bytes
    parent: int | str
    tokens: tuple[int, ...]
    salt: str


class Lower(Protocol):
    """A second, larger and slower tier for what the pool evicts."""

    def find(self, block_hash: bytes) -> Entry | None:
        """The entry with this hash."""

    def put(self, block: int, entry: Entry) -> list[Entry]:
        """Keep what the block holds; gives the entries that are gone now."""

    def pop(self, block_hash: bytes) -> Any:
        """Forget an entry; gives its content for `place`, or None if it cannot be read."""

    def place(self, block: int, content: Any) -> None:
        """Write content into a block of the pool."""

    def forget(self, block_hash: bytes) -> None:
        """Drop an entry unread."""

    def entries(self) -> Iterator[Entry]:
        """All of them, parents before their children."""

    def clear(self) -> None:
        """Forget everything."""


@dataclass(slots=True)
class Chain:
    """How far one request's blocks are cached: the first `length` of its table, the last with this hash.

    A collision or a cleared cache ends it: what comes after stays private.
    """

    block_hash: bytes
    parent: int | str
    salt: str
    generation: int
    length: int = 0
    broken: bool = False


@dataclass(slots=True)
class Counts:
    """Where all blocks are; free + cached + held = all."""

    free: int
    cached: int
    held: int


@dataclass
class BlockPool:
    """Block numbers 1 to `blocks`; 0 is the null block and never given out."""

    blocks: int
    identity: str = ""
    digest: Hash = field(default=lambda data: hashlib.sha256(data).digest())
    share: float = 0.5
    lower: Lower | None = None

    def __post_init__(self) -> None:
        self._refs = [0] * (self.blocks + 1)
        self._entries: dict[int, Entry] = {}
        self._by_hash: dict[bytes, int] = {}
        self._empty: deque[int] = deque(range(1, self.blocks + 1))
        self._idle: FairOrder[int] = FairOrder(self.share * self.blocks)  # cached, nobody holds them
        self._ids = count()
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self.sequence = 0  # of the next event
        self._generation = 0

    @property
    def available(self) -> int:
        """Blocks that can be taken now, evicting if need be."""
        return len(self._empty) + len(self._idle)

    def counts(self) -> Counts:
        """Free, cached but idle, and held blocks."""
        free, cached = len(self._empty), len(self._idle)
        return Counts(free, cached, self.blocks - free - cached)

    def references(self, block: int) -> int:
        """How many requests hold a block."""
        return self._refs[block]

    def chain(self, salt: str) -> Chain:
        """The start of a request's chain."""
        root = self.digest(_framed(self.identity) + _framed(salt))
        return Chain(root, salt, salt, self._generation)

    def match(self, chain: Chain, tokens: Sequence[int]) -> int | None:
        """Take the cached block that holds these tokens next in the chain: it is then held, and the chain moves on."""
        if self._ended(chain):
            return None
        block_hash = self._hash(chain, tokens)
        block = self._by_hash.get(block_hash)
        if block is None:
            return self._bring_back(block_hash, chain, tokens)
        entry = self._entries[block]
        if not _same(entry, chain, tokens):
            return None
        self.hold(block)
        _advance(chain, entry)
        return block

    def publish(self, chain: Chain, block: int, tokens: Sequence[int]) -> int:
        """A held block is full: let others hit it. Gives the block to use, another one if the same is cached already."""
        if self._ended(chain):
            return block
        block_hash = self._hash(chain, tokens)
        twin = self._by_hash.get(block_hash)
        if twin is None:
            self._enter(block, self._known_below(block_hash, chain, tokens) or self._new(block_hash, chain, tokens))
        elif _same(self._entries[twin], chain, tokens):
            self.hold(twin)
            self.release([block])
            block = twin
        else:
            chain.broken = True
            return block
        _advance(chain, self._entries[block])
        return block

    def take(self, count: int) -> list[int] | None:
        """That many blocks for one holder, or None (and nothing changed) if there are too few."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def hold(self, block: int) -> None:
        """One more holder of a cached block."""
        if self._refs[block] == 0:
            self._idle.remove(block, self._entries[block].salt)
        self._refs[block] += 1

    def release(self, table: Sequence[int]) -> None:
        """A holder lets its blocks go, in table order: the tail is reused first, what is not cached before all else."""
        for block in reversed(table):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if (entry := self._entries.get(block)) is not None:
                    self._idle.add(block, entry.salt)
                else:
                    self._empty.appendleft(block)

    def clear(self) -> None:
        """Forget every cached block; held ones stay with their holders but are no longer found."""
        self._empty.extend(self._idle)
        for store in (self._idle, self._entries, self._by_hash):
            store.clear()
        if self.lower is not None:
            self.lower.clear()
        self._generation += 1
        self._say(AllBlocksCleared(self.sequence))

    def since(self, sequence: int) -> list[Event] | None:
        """The events from a number on; None if some of them are forgotten already."""
        missed = self.sequence - sequence
        return None if not 0 <= missed <= len(self.events) else list(self.events)[len(self.events) - missed :]

    def snapshot(self) -> list[Event]:
        """Events that build the present content from nothing, parents first, all with the number of the last one."""
        now = self.sequence - 1
        stored = (BlockStored(now, e.block_hash, e.parent_hash, e.tokens) for e in self._all())
        return [AllBlocksCleared(now), *stored]

    def cached_hashes(self) -> dict[bytes, tuple[int, ...]]:
        """All that can be hit: hash to tokens."""
        return {entry.block_hash: entry.tokens for entry in self._all()}

    def _all(self) -> Iterator[Entry]:
        yield from self._entries.values()
        if self.lower is not None:
            yield from self.lower.entries()

    def _ended(self, chain: Chain) -> bool:
        return chain.broken or chain.generation != self._generation

    def _take(self) -> int:
        if self._empty:
            block = self._empty.popleft()
        else:
            block = self._idle.victim()
            self._evict(block)
        self._refs[block] = 1
        return block

    def _evict(self, block: int) -> None:
        entry = self._entries.pop(block)
        self._idle.remove(block, entry.salt)
        del self._by_hash[entry.block_hash]
        for gone in [entry] if self.lower is None else self.lower.put(block, entry):
            self._say(BlockRemoved(self.sequence, gone.block_hash))

    def _bring_back(self, block_hash: bytes, chain: Chain, tokens: Sequence[int]) -> int | None:
        """Take a block for what the lower tier has, and write it there; None if that has not the same, or no block is free."""
        entry = self.lower.find(block_hash) if self.lower is not None else None
        if self.lower is None or entry is None or not self.available or not _same(entry, chain, tokens):
            return None
        content = self.lower.pop(block_hash)
        if content is None:
            self._say(BlockRemoved(self.sequence, block_hash))
            return None
        block = self._take()
        self.lower.place(block, content)
        self._enter(block, entry)
        _advance(chain, entry)
        return block

    def _known_below(self, block_hash: bytes, chain: Chain, tokens: Sequence[int]) -> Entry | None:
        """The lower tier's entry for what was computed anew, which it then drops; its children stay findable."""
        entry = self.lower.find(block_hash) if self.lower is not None else None
        if self.lower is None or entry is None:
            return None
        self.lower.forget(block_hash)
        if _same(entry, chain, tokens):
            return entry
        self._say(BlockRemoved(self.sequence, block_hash))
        return None

    def _new(self, block_hash: bytes, chain: Chain, tokens: Sequence[int]) -> Entry:
        self._say(BlockStored(self.sequence, block_hash, chain.block_hash, tuple(tokens)))
        return Entry(next(self._ids), block_hash, chain.block_hash, chain.parent, tuple(tokens), chain.salt)

    def _enter(self, block: int, entry: Entry) -> None:
        self._entries[block] = entry
        self._by_hash[entry.block_hash] = block

    def _hash(self, chain: Chain, tokens: Sequence[int]) -> bytes:
        return self.digest(chain.block_hash + struct.pack(f"<{len(tokens)}i", *tokens))

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self.sequence += 1


def _same(entry: Entry, chain: Chain, tokens: Sequence[int]) -> bool:
    return entry.parent == chain.parent and entry.tokens == tuple(tokens)


def _advance(chain: Chain, entry: Entry) -> None:
    chain.block_hash, chain.parent = entry.block_hash, entry.id
    chain.length += 1


def _framed(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
