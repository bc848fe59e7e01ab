"""Which requests run next, and how many rows each. Pure bookkeeping: no torch, no threads, no clock of its own.

There are no phases: a request has `tokens` (prompt and output so far) and `computed`, and every step lets `computed`
catch up. Chunked prefill, prefix hits, resuming after preemption and speculation are all this one rule. A request that
lacks exactly its newest token decodes (with drafts after it, if its lane speculates); others get a chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference.blocks import BLOCK, BlockPool, Chain
from inference.speculate import AdaptiveLength, NgramProposer, Proposer


@dataclass(frozen=True, slots=True)
class Lane:
    """How a class of requests is run: lower levels go first. `tier` is its name in answers."""

    name: str
    tier: str
    level: int
    most_running: int
    speculates: bool


FAST = Lane("fast", "priority", level=0, most_running=4, speculates=True)
STANDARD = Lane("standard", "default", level=1, most_running=8, speculates=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of prompt a step may compute: alone, beside decoding requests, and of others beside fast ones.

    They are counted as rows at a prompt's start: one at position `doubles_at`, which attends so many keys, counts twice, so
    that a step takes as long at a prompt's end as at its start. `turn`: when so many steps in a row gave rows to fast
    prompts and none to a standard one, the next gives it some.
    """

    alone: int = 256
    shared: int = 96
    fast: int = 64
    doubles_at: int = 1_536
    verify_rows: int = 24
    turn: int = 3
    aging_s: float = 20.0
    reserve_blocks: int = 8


@dataclass(eq=False, slots=True)
class Request:
    """One request on its way. `cached` is what its first admission found; it stays after a preemption."""

    id: str
    tokens: list[int]
    most: int
    lane: Lane
    arrival: float
    salt: str = ""
    priority: int = 0
    prompt: int = 0
    computed: int = 0
    cached: int = 0
    prompt_rows: int = 0
    preemptions: int = 0
    admitted: float | None = None
    finished: str | None = None
    table: list[int] = field(default_factory=list)
    chain: Chain | None = None
    proposer: Proposer = field(default_factory=NgramProposer)
    drafting: AdaptiveLength = field(default_factory=AdaptiveLength)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt

    @property
    def decoding(self) -> bool:
        """Only the newest token, a generated one, lacks its keys."""
        return self.output > 0 and self.computed == len(self.tokens) - 1

    @property
    def prompt_seen(self) -> int:
        """Prompt tokens that were computed or found; all of them once there is output."""
        return self.prompt if self.output else self.cached + self.prompt_rows


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one request in a step: `tokens` from position `start`, of which the last `drafts` are guesses."""

    request: Request
    start: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...] = ()
    decode: bool = False

    @property
    def samples(self) -> bool:
        """The step reaches the newest token, so it draws."""
        return self.start + len(self.tokens) - len(self.drafts) == len(self.request.tokens)


class Scheduler:
    """Waiting and running requests over one block pool."""

    def __init__(self, pool: BlockPool, limits: Limits | None = None) -> None:
        self.pool, self.limits = pool, limits or Limits()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self._passed_over = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def plan(self, now: float) -> list[Work]:
        """The next step: decoding first, then prompts, whether under way or new, in one order."""
        works: list[Work] = []
        self._make_way(now)
        for request in sorted(self.running, key=self._order(now)):
            if request.decoding and request in self.running:
                works += self._decode(request, now, works)
        prompts = [*(request for request in self.running if not request.decoding), *self.waiting]
        prompts.sort(key=self._order(now))
        if self._passed_over >= self.limits.turn:
            prompts.sort(key=lambda request: request.lane.speculates)
        chunks = self._chunks(prompts, now, works)
        served = {work.request.lane.speculates for work in chunks}
        passed_over = served == {True} and not all(request.lane.speculates for request in prompts)
        self._passed_over = self._passed_over + 1 if passed_over else 0
        return works + chunks

    def commit(self, work: Work, drawn: Sequence[int], reason: str | None) -> None:
        """A work's rows are computed: `drawn` (accepted drafts and one more) are its new tokens, `reason` ends it."""
        request = work.request
        rows = len(drawn) if work.decode else len(work.tokens)
        if not work.decode and not request.preemptions and not request.output:
            request.prompt_rows += rows
        request.computed = work.start + rows
        request.tokens.extend(drawn)
        if work.decode and request.lane.speculates:
            request.drafting.record(len(work.drafts), max(0, len(drawn) - 1))
        self._publish(request)
        if reason is not None:
            self._end(request, reason)

    def abort(self, request: Request, reason: str = "abort") -> bool:
        """Drop a request wherever it is; False if it had ended already."""
        if request.finished is not None:
            return False
        self._end(request, reason)
        return True

    def waiting_tokens(self) -> int:
        """Prompt tokens that nobody has begun to compute, hits not known."""
        return sum(len(request.tokens) for request in self.waiting)

    def _order(self, now: float) -> Callable[[Request], tuple[int, int, float]]:
        """Lane, then priority with one level for every `aging_s` waited, then arrival."""
        aging = self.limits.aging_s

        def key(request: Request) -> tuple[int, int, float]:
            waited = int((now - request.arrival) / aging) if request.output == 0 else 0
            return request.lane.level, request.priority - waited, request.arrival

        return key

    def _chunks(self, prompts: Sequence[Request], now: float, decodes: Sequence[Work]) -> list[Work]:
        """Rows of prompts. Who cannot be admitted keeps those behind him out, but not who is in already."""
        chunks: list[Work] = []
        running, blocked = set(self.running), False
        for request in prompts:
            left = self._room(request, decodes, chunks)
            if left < (BLOCK if chunks else 1) or (request not in running and (blocked or self._lane_full(request.lane))):
                continue
            if request in running or self._admit(request, now):
                chunks.append(self._chunk(request, left))
            else:
                blocked = True
        return chunks

    def _room(self, request: Request, decodes: Sequence[Work], chunks: Sequence[Work]) -> float:
        """How many rows at a prompt's start the step still takes: few beside fast requests, if this is none itself."""
        hurried = any(work.request.lane.speculates for work in (*decodes, *chunks))
        most = self.limits.shared if decodes else self.limits.alone
        if hurried and not request.lane.speculates:
            most = min(most, self.limits.fast)
        return most - sum(len(work.tokens) * self._weight(work.start) for work in chunks)

    def _weight(self, position: int) -> float:
        """What a row costs there, beside one at a prompt's start."""
        return 1 + position / self.limits.doubles_at

    def _make_way(self, now: float) -> None:
        """The first fast request that waits takes blocks from requests of slower lanes, if there are too few."""
        first = min(self.waiting, key=self._order(now), default=None)
        if first is None or not first.lane.speculates or self._lane_full(first.lane):
            return
        while not self._admit(first, now):
            slower = [request for request in self.running if request.lane.level > first.lane.level]
            if not slower:
                return
            self._preempt(max(slower, key=self._order(now)))

    def _lane_full(self, lane: Lane) -> bool:
        return sum(request.lane.name == lane.name for request in self.running) >= lane.most_running

    def _decode(self, request: Request, now: float, works: Sequence[Work]) -> list[Work]:
        drafts = self._drafts(request, works)
        while not self._grow(request, 1 + len(drafts)):
            if drafts:
                drafts = []
                continue
            victim = max(self.running, key=self._order(now))  # this one or a later one: not planned yet
            self._preempt(victim)
            if victim is request:
                return []
        return [Work(request, request.computed, (request.tokens[-1], *drafts), tuple(drafts), decode=True)]

    def _drafts(self, request: Request, works: Sequence[Work]) -> list[int]:
        if not request.lane.speculates:
            return []
        room = self.limits.verify_rows - sum(len(work.tokens) for work in works) - 1
        most = min(request.drafting.length, room, request.most - request.output - 1)
        return request.proposer.propose(request.tokens, most)

    def _grow(self, request: Request, rows: int) -> bool:
        lacking = -(-(request.computed + rows) // BLOCK) - len(request.table)
        if lacking <= 0:
            return True
        blocks = self.pool.take(lacking)
        if blocks is not None:
            request.table += blocks
        return blocks is not None

    def _admit(self, request: Request, now: float) -> bool:
        """Find what is cached and take blocks for the rest of what is known; False (and no change) if they lack."""
        request.chain = self.pool.chain(request.salt)
        self._find(request)
        lacking = -(-len(request.tokens) // BLOCK) - len(request.table)
        reserve = self.limits.reserve_blocks if self.running else 0
        blocks = self.pool.take(lacking) if self.pool.available >= lacking + reserve else None
        if blocks is None:
            self._drop_blocks(request)
            return False
        request.table += blocks
        if not request.preemptions:
            request.cached = request.computed
        request.admitted = request.admitted or now
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _find(self, request: Request) -> None:
        """Move `computed` over cached blocks, but never over the last token: it must be computed to get logits."""
        assert request.chain is not None
        while request.computed == request.chain.length * BLOCK < (len(request.tokens) - 1) // BLOCK * BLOCK:
            start = request.computed
            block = self.pool.match(request.chain, request.tokens[start : start + BLOCK])
            if block is None:
                return
            if start // BLOCK < len(request.table):
                self.pool.release([request.table[start // BLOCK]])
                request.table[start // BLOCK] = block
            else:
                request.table.append(block)
            request.computed += BLOCK

    def _chunk(self, request: Request, left: float) -> Work:
        """The next rows of what is known; looks first whether somebody else has computed them meanwhile."""
        before = request.computed
        self._find(request)
        if not request.preemptions:
            request.cached += request.computed - before
        start = request.computed
        end = min(start + max(1, int(left / self._weight(start))), len(request.tokens))
        return Work(request, start, tuple(request.tokens[start:end]))

    def _publish(self, request: Request) -> None:
        chain = request.chain
        assert chain is not None
        while chain.length < request.computed // BLOCK:
            index = chain.length
            tokens = request.tokens[index * BLOCK : (index + 1) * BLOCK]
            request.table[index] = self.pool.publish(chain, request.table[index], tokens)
            if chain.length == index:
                return

    def _preempt(self, request: Request) -> None:
        """Back to the queue: its cached blocks stay findable, so coming back is mostly a prefix hit."""
        self._drop_blocks(request)
        request.preemptions += 1
        self.preemptions += 1
        self.running.remove(request)
        self.waiting.append(request)

    def _end(self, request: Request, reason: str) -> None:
        self._drop_blocks(request)
        request.finished = reason
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)

    def _drop_blocks(self, request: Request) -> None:
        self.pool.release(request.table)
        request.proposer.close()
        request.table.clear()
        request.computed = 0
