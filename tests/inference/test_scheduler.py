"""The scheduler over a model that is a hash: whatever happens, every answer is the one it would give alone."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.blocks import BLOCK, BlockPool
from inference.scheduler import FAST, STANDARD, Limits, Request, Scheduler, Work


def _next(tokens: list[int]) -> int:
    """The toy model: the next token is a function of the last 24, with few values, so that drafts are often right."""
    return zlib.crc32(bytes(token % 251 for token in tokens[-24:])) % 4


def _answer(prompt: list[int], most: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(most):
        tokens.append(_next(tokens))
    return tokens[len(prompt) :]


class _Junk:
    """Proposes anything."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def propose(self, tokens: object, most: int) -> list[int]:
        return [self._random.randrange(5) for _ in range(self._random.randint(0, max(0, most)))]

    def close(self) -> None:
        pass


class _Rig:
    """Steps a scheduler with the toy model, which reads its inputs from the blocks as the real one would."""

    def __init__(self, blocks: int, limits: Limits) -> None:
        self.scheduler = Scheduler(BlockPool(blocks, "m"), limits)
        self.store: dict[tuple[int, int], int] = {}
        self.requests: list[Request] = []
        self.now = 0.0
        self.rows: dict[Request, int] = {}

    def add(self, request: Request) -> Request:
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def step(self) -> list[Work]:
        self.now += 1.0
        works = self.scheduler.plan(self.now)
        for work in works:
            request = work.request
            for position, token in enumerate(work.tokens, work.start):
                self.store[request.table[position // BLOCK], position % BLOCK] = token
        for work in works:
            self._finish(work)
        self.check()
        return works

    def _finish(self, work: Work) -> None:
        request = work.request
        if not request.preemptions and not work.decode:
            self.rows[request] = self.rows.get(request, 0) + len(work.tokens)
        if not work.samples:
            self.scheduler.commit(work, (), None)
            return
        end = work.start + len(work.tokens)
        seen = [self.store[request.table[position // BLOCK], position % BLOCK] for position in range(end)]
        drawn: list[int] = []
        for draft in (*work.drafts, None):
            drawn.append(_next(seen[: end - len(work.drafts) + len(drawn)]))
            if drawn[-1] != draft:
                break
        drawn = drawn[: request.most - request.output]
        reason = "length" if request.output + len(drawn) == request.most else None
        self.scheduler.commit(work, drawn, reason)

    def check(self) -> None:
        pool = self.scheduler.pool
        counts, running = pool.counts(), self.scheduler.running
        tables = [request.table for request in self.requests]
        assert counts.free + counts.cached + counts.held == pool.blocks
        assert sum(pool.references(block) for block in range(1, pool.blocks + 1)) == sum(map(len, tables))
        assert counts.held == len({block for table in tables for block in table})
        assert all(not request.table for request in self.requests if request not in running)
        holders = {(block, request.salt) for request in running for block in request.table}
        assert len(holders) == counts.held, "two teams hold one block"


@settings(max_examples=120, deadline=None)
@given(st.integers(6, 40), st.randoms(use_true_random=False))
def test_every_answer_is_the_one_given_alone(blocks: int, chance: random.Random) -> None:
    """Mixed lanes, shared prefixes, tiny pools, chunks of any size, junk drafts, preemptions and aborts change nothing."""
    limits = Limits(
        alone=chance.choice((1, 5, 16, 40)), shared=chance.choice((1, 7, 32)), fast=chance.choice((1, 16)), turn=chance.choice((1, 3)),
        verify_rows=chance.choice((1, 6, 24)), aging_s=chance.choice((3.0, 1e9)), reserve_blocks=chance.choice((0, 2)),
    )  # fmt: skip
    rig = _Rig(blocks, limits)
    for index in range(chance.randint(1, 12)):
        most = chance.randint(1, 30)
        size = min(chance.randint(1, 70), blocks * BLOCK - most)
        prompt = [chance.randrange(2)] * (size // 2) + [chance.randrange(3) for _ in range(size - size // 2)]
        request = Request(
            str(index), prompt, most, chance.choice((FAST, STANDARD)), float(index), chance.choice(("", "s"))
        )
        if chance.random() < 0.5:
            request.proposer = _Junk(index)
        rig.add(request)
        for _ in range(chance.randrange(4)):
            rig.step()
        if chance.random() < 0.2:
            victim = chance.choice(rig.requests)
            rig.scheduler.abort(victim)
            assert not rig.scheduler.abort(victim)
            rig.check()
    for _ in range(5000):
        if not rig.step():
            break
    assert not rig.scheduler.running
    assert not rig.scheduler.waiting
    assert rig.scheduler.pool.counts().held == 0
    for request in rig.requests:
        output, whole = request.tokens[request.prompt :], _answer(request.tokens[: request.prompt], request.most)
        assert output == whole[: len(output)]
        assert request.finished in ("abort", "length")
        if request.finished == "length":
            assert len(output) == request.most
        if request.finished == "length" and not request.preemptions:
            assert request.cached == request.prompt - rig.rows[request], "cached is what was not computed"
            assert request.cached < request.prompt
        assert request.prompt_seen <= request.prompt


def test_nothing_is_lost_after_ten_thousand_mishaps() -> None:
    """Aborts at any stage, failing steps and preemptions in a pool that is always too small: every block is there at the end."""
    chance, mishaps = random.Random(6), 0
    rig = _Rig(14, Limits(alone=40, shared=20, fast=8, reserve_blocks=0, turn=2))
    scheduler, alive = rig.scheduler, []
    while mishaps < 10_000:
        while len(alive) < 10:
            prompt = [chance.randrange(2)] * chance.randint(1, 120)
            lane = chance.choice((FAST, STANDARD))
            alive.append(Request("r", prompt, chance.randint(1, 60), lane, rig.now, chance.choice(("", "s"))))
            alive[-1].proposer = _Junk(mishaps)
            scheduler.add(alive[-1])
        rig.requests = alive
        before = scheduler.preemptions
        if chance.random() < 0.3:
            rig.now += 1.0
            for work in scheduler.plan(rig.now):  # the step fails: its requests end
                mishaps += scheduler.abort(work.request, "error")
        else:
            rig.step()
        mishaps += scheduler.preemptions - before
        for request in chance.sample(alive, 2):
            mishaps += scheduler.abort(request)
        rig.check()
        alive = [request for request in alive if request.finished is None]
    for request in alive:
        scheduler.abort(request)
    assert scheduler.preemptions > 100
    assert not scheduler.running
    assert not scheduler.waiting
    counts = scheduler.pool.counts()
    assert counts.free + counts.cached == scheduler.pool.blocks


def test_a_second_request_shares_from_the_second_chunk_on() -> None:
    """Of two equal prompts that arrive together the later finds what the earlier has just computed."""
    rig = _Rig(64, Limits(alone=64))
    first, second = (rig.add(Request(name, [1] * 200, 2, STANDARD, at)) for name, at in (("a", 0.0), ("b", 1.0)))
    while rig.step():
        pass
    assert first.cached == 0
    assert second.cached == 176, "all but what was left for it beside the first one's last rows"


@pytest.mark.parametrize(
    ("lanes", "priorities", "want"),
    [
        pytest.param((STANDARD, STANDARD, FAST), (0, 0, 0), "cab", id="the fast lane goes first"),
        pytest.param((STANDARD, STANDARD, STANDARD), (0, -1, 0), "bac", id="then the lower priority number"),
        pytest.param((STANDARD, STANDARD, STANDARD), (0, 0, 0), "abc", id="then arrival"),
    ],
)
def test_prompts_are_computed_in_order(lanes: tuple[object, ...], priorities: tuple[int, ...], want: str) -> None:
    """With rows for one prompt at a time, first tokens come in the order of lane, priority, arrival."""
    rig, order = _Rig(64, Limits(alone=32, shared=32, fast=32, aging_s=1e9)), []
    for index, (lane, priority) in enumerate(zip(lanes, priorities, strict=True)):
        rig.add(Request("abc"[index], [index] * 64, 1, lane, float(index), priority=priority))  # type: ignore[arg-type]
    while works := rig.step():
        order += [work.request.id for work in works if work.request.finished]
    assert "".join(order) == want


def test_a_flood_of_fast_requests_starves_nobody() -> None:
    """Fast prompts go first, but never more than `turn` steps in a row while a standard one waits."""
    rig = _Rig(64, Limits(alone=16, shared=16, fast=16, turn=3))
    slow = rig.add(Request("slow", [9] * 16, 1, STANDARD, 0.0))
    for index in range(40):
        rig.add(Request(str(index), [index] * 16, 1, FAST, float(index)))
        rig.step()
        if slow.finished:
            break
    assert rig.now == 4


def test_waiting_raises_the_priority() -> None:
    """In one lane a request of a later priority overtakes newer ones once it has waited long enough."""
    rig = _Rig(64, Limits(alone=16, aging_s=10.0))
    low = rig.add(Request("low", [9] * 16, 1, STANDARD, 0.0, priority=2))
    for index in range(60):
        rig.add(Request(str(index), [index] * 16, 1, STANDARD, float(index)))
        rig.step()
        if low.finished:
            break
    assert 20 <= rig.now <= 22


def test_a_fast_prompt_overtakes_one_that_is_under_way() -> None:
    """Chunks of a long standard prompt stop for a fast one that comes later, and it gets most of the step."""
    rig = _Rig(256, Limits(alone=64, shared=64, fast=16))
    rig.add(Request("long", [1, 2] * 500, 4, STANDARD, 0.0))
    rig.step()
    quick = rig.add(Request("quick", [3] * 100, 4, FAST, 1.0))
    rows = [(work.request.id, len(work.tokens)) for work in rig.step()]
    assert rows == [("quick", 64)]
    rows = [(work.request.id, len(work.tokens)) for work in rig.step()]
    assert rows == [("quick", 36)], "beside fast rows others get 16 at most, and these are used up"
    assert quick.output == 1


def test_a_fast_prompt_takes_blocks_from_slower_lanes() -> None:
    """Where the pool is full of standard requests, the last of them makes way, and still ends well."""
    rig = _Rig(16, Limits(reserve_blocks=0))
    slow = [rig.add(Request(str(index), [index] * 120, 8, STANDARD, float(index))) for index in range(2)]
    rig.step()
    quick = rig.add(Request("quick", [7] * 60, 2, FAST, 3.0))
    rig.step()
    assert quick.output == 1
    assert [request.preemptions for request in slow] == [0, 1]
    while rig.step():
        pass
    assert all(request.finished == "length" for request in (*slow, quick))


def test_a_lane_has_a_cap() -> None:
    """No more fast requests run at once than the lane allows; standard ones still get in."""
    rig = _Rig(64, Limits(alone=256, shared=256, fast=256))
    for index in range(6):
        rig.add(Request(str(index), [index] * 8, 20, FAST, float(index)))
    rig.add(Request("s", [9] * 8, 20, STANDARD, 9.0))
    rig.step()
    rig.step()
    assert sorted(request.lane.name for request in rig.scheduler.running) == ["fast"] * 4 + ["standard"]


def test_chunks_shrink_as_a_prompt_grows() -> None:
    """A row at `doubles_at` costs two, so a step takes as long at the end of a long prompt as at its start."""
    rig = _Rig(256, Limits(alone=128, doubles_at=512))
    rig.add(Request("long", [1, 2] * 1024, 1, STANDARD, 0.0))
    chunks = [work for works in iter(rig.step, []) for work in works]
    assert sum(len(work.tokens) for work in chunks) == 2048
    assert len(chunks[0].tokens) == 128
    costs = [len(work.tokens) * (1 + work.start / 512) for work in chunks[:-1]]
    assert max(costs) <= 128
    assert min(costs) > 128 * 0.95, "none is smaller than it may be"


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    """A long prompt gets chunks; who decodes gets a token in every step, and fast ones make the chunks small."""
    rig = _Rig(128, Limits(alone=256, shared=128, fast=64))
    quick = rig.add(Request("q", [1] * 8, 50, FAST, 0.0))
    rig.step()
    rig.add(Request("long", [2, 3] * 300, 4, STANDARD, 1.0))
    for _ in range(5):
        before = quick.output
        works = rig.step()
        assert quick.output > before
        assert 32 < max(len(work.tokens) for work in works) <= 64
