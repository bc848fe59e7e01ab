"""Blocks of 16 tokens, shared by prefix: a hash chain, reference counts, and the order in which free blocks are reused.

A full block is known by the hash of its parent's hash and its tokens; the first parent is made of the model and the
request's salt, so requests with other salts or weights never meet. A hit also compares tokens, parent and salt: a
collision is a miss, not somebody else's data. A parent is never evicted before its cached child: whoever holds a child
holds its parents, and a request's blocks are freed tail first.

No salt (a team, behind the gateway) pushes the others out: where blocks lack, one whose idle blocks exceed its `share`
of the pool loses its oldest first; as long as nobody else needs them it may fill the pool.
"""

import hashlib
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Entry:
    """What a cached block holds; `parent` is a block, or the salt for a first block."""

    block_hash: bytes
    parent_hash: bytes
    parent: int | str
    tokens: tuple[int, ...]
    salt: str


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

    def __post_init__(self) -> None:
        self._refs = [0] * (self.blocks + 1)
        self._entries: dict[int, _Entry] = {}
        self._by_hash: dict[bytes, int] = {}
        self._empty: deque[int] = deque(range(1, self.blocks + 1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, nobody holds them; next victim first
        self._idle_of: dict[str, OrderedDict[int, None]] = defaultdict(OrderedDict)  # the same by salt
        self._greedy: set[str] = set()  # salts with more idle blocks than their share
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._sequence = 0
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
        if block is None or not self._same(block, chain, tokens):
            return None
        self.hold(block)
        _advance(chain, block_hash, block)
        return block

    def publish(self, chain: Chain, block: int, tokens: Sequence[int]) -> int:
        """A held block is full: let others hit it. Gives the block to use, another one if the same is cached already."""
        if self._ended(chain):
            return block
        if (twin := self.match(chain, tokens)) is not None:
            self.release([block])
            return twin
        block_hash = self._hash(chain, tokens)
        if block_hash in self._by_hash:
            chain.broken = True
            return block
        self._entries[block] = _Entry(block_hash, chain.block_hash, chain.parent, tuple(tokens), chain.salt)
        self._by_hash[block_hash] = block
        self._say(BlockStored(self._sequence, block_hash, chain.block_hash, tuple(tokens)))
        _advance(chain, block_hash, block)
        return block

    def take(self, count: int) -> list[int] | None:
        """That many blocks for one holder, or None (and nothing changed) if there are too few."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def hold(self, block: int) -> None:
        """One more holder of a cached block."""
        if self._refs[block] == 0:
            self._forget_idle(block, self._entries[block].salt)
        self._refs[block] += 1

    def release(self, table: Sequence[int]) -> None:
        """A holder lets its blocks go, in table order: the tail is reused first, what is not cached before all else."""
        for block in reversed(table):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if (entry := self._entries.get(block)) is not None:
                    self._idle[block] = self._idle_of[entry.salt][block] = None
                    self._weigh(entry.salt)
                else:
                    self._empty.appendleft(block)

    def clear(self) -> None:
        """Forget every cached block; held ones stay with their holders but are no longer found."""
        self._empty.extend(self._idle)
        for store in (self._idle, self._idle_of, self._greedy):
            store.clear()
        self._entries.clear()
        self._by_hash.clear()
        self._generation += 1
        self._say(AllBlocksCleared(self._sequence))

    def since(self, sequence: int) -> list[Event] | None:
        """The events from a number on; None if some of them are forgotten already."""
        missed = self._sequence - sequence
        return None if not 0 <= missed <= len(self.events) else list(self.events)[len(self.events) - missed :]

    def snapshot(self) -> list[Event]:
        """Events that build the present content from nothing, parents first, all with the number of the last one."""
        now = self._sequence - 1
        stored = (BlockStored(now, e.block_hash, e.parent_hash, e.tokens) for e in self._entries.values())
        return [AllBlocksCleared(now), *stored]

    def cached_hashes(self) -> dict[bytes, tuple[int, ...]]:
        """All that can be hit: hash to tokens."""
        return {entry.block_hash: entry.tokens for entry in self._entries.values()}

    def _ended(self, chain: Chain) -> bool:
        return chain.broken or chain.generation != self._generation

    def _take(self) -> int:
        if self._empty:
            block = self._empty.popleft()
        else:
            block = next(iter(self._idle_of[next(iter(self._greedy))] if self._greedy else self._idle))
            entry = self._entries.pop(block)
            self._forget_idle(block, entry.salt)
            del self._by_hash[entry.block_hash]
            self._say(BlockRemoved(self._sequence, entry.block_hash))
        self._refs[block] = 1
        return block

    def _forget_idle(self, block: int, salt: str) -> None:
        del self._idle[block], self._idle_of[salt][block]
        self._weigh(salt)

    def _weigh(self, salt: str) -> None:
        idle = len(self._idle_of[salt])
        if idle > self.share * self.blocks:
            self._greedy.add(salt)
        else:
            self._greedy.discard(salt)
        if not idle:
            del self._idle_of[salt]

    def _hash(self, chain: Chain, tokens: Sequence[int]) -> bytes:
        return self.digest(chain.block_hash + struct.pack(f"<{len(tokens)}i", *tokens))

    def _same(self, block: int, chain: Chain, tokens: Sequence[int]) -> bool:
        entry = self._entries[block]
        return entry.parent == chain.parent and entry.tokens == tuple(tokens)

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self._sequence += 1


def _advance(chain: Chain, block_hash: bytes, block: int) -> None:
    chain.block_hash, chain.parent = block_hash, block
    chain.length += 1


def _framed(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
