"""Lanes, queues and prefix caches on a virtual clock: a backtest sends recorded calls through the decision code of the gateway.

What is simulated is only the world (how long a lane really takes, what its cache really holds, what it really charges). What
the
gateway knows of it is learnt by the gateway's own code (`live.py`) from the simulated answers. Chance is drawn once per call,
whatever lane it takes, so that two policies meet the same luck and their difference is theirs.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from router_policies.live import Figures, LaneFigures, Lengths, Prior, behind_s, rent
from router_policies.presets import OUTPUT_PRIOR
from router_policies.rules import Klass
from router_policies.scorers import filled
from router_policies.types import Ask, ForecastOf, Lane, Rates, Served

_NOTHING_SEEN = Figures()
_GOLDEN = 0.6180339887498949
_REFRESH_ANSWERS = 16  # a lane's learnt figures are taken over after so many answers: the gateway does so every 20 ms


class Recorded(NamedTuple):
    """One call of a trace. `blocks` name the prompt's prefixes: an id stands for its block and all before it."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    team: str = "default"
    model: str = "m"
    blocks: tuple[int, ...] = ()
    block_tokens: int = 512
    session: str = ""
    wished_class: str | None = None
    stream: bool = True
    client: str = ""
    path: str = "/v1/chat/completions"
    tags: Mapping[str, str] = {}
    has_tools: bool = False
    max_output_tokens: int | None = None
    cached: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reality:
    """How a lane really behaves. Times are seconds; `spread` is the sigma of their logarithm, their mean is as given."""

    key: str
    backend: str
    name: str
    rates: Mapping[str, Rates]  # by model
    first_token_s: float
    prefill_s_per_token: float
    seconds_per_output_token: float
    spread: float = 0.4
    slots: int | None = None
    pool: str = ""  # what shares one cache; empty: the backend
    cache_ttl_s: float = 600.0
    cache_tokens: int | None = None  # capacity; None: no bound but time
    cache_minimum: int = 1_024
    prior: Prior | None = None  # what the gateway's settings say of it; None: the truth
    outages: Sequence[tuple[float, float]] = ()  # from, to
    paces: Sequence[tuple[float, float]] = ()  # from when on it is this many times as slow
    prices: Sequence[tuple[float, Mapping[str, Rates]]] = ()  # from when on


class Outcome(NamedTuple):
    """How a call went."""

    lane: str
    klass: Klass
    cost_usd: float
    uncached: int
    cached: int
    output: int
    first_token_s: float
    total_s: float
    queue_s: float
    missed: bool
    expected_cost_usd: float
    expected_wait_s: float


class Choice(NamedTuple):
    """What a router says: no lane is a refusal."""

    lane: Lane | None
    klass: Klass
    expected_cost_usd: float = math.nan
    expected_wait_s: float = math.nan


Router = Callable[[Ask, Sequence[Lane], ForecastOf], Choice]


class Cache:
    """Prefixes one pool holds; a prefix that is used is used with all that it includes."""

    def __init__(self, ttl_s: float, capacity_tokens: int | None) -> None:
        self._ttl_s, self._capacity = ttl_s, capacity_tokens
        self._until: OrderedDict[int, float] = OrderedDict()

    def tokens(self, call: Recorded, now_s: float) -> int:
        blocks, until = call.blocks, self._until
        low, high = 0, len(blocks)
        while low < high:  # present(i) means present(j) for all before it
            middle = (low + high) // 2
            if until.get(blocks[middle], -1.0) > now_s:
                low = middle + 1
            else:
                high = middle
        return min(low * call.block_tokens, call.prompt_tokens)

    def use(self, call: Recorded, now_s: float) -> None:
        until, ends = self._until, now_s + self._ttl_s
        for block in reversed(call.blocks):
            until[block] = ends
            until.move_to_end(block)
        if self._capacity is not None:
            most = self._capacity // call.block_tokens
            while len(until) > most:
                until.popitem(last=False)


@dataclass(slots=True)
class _Lane:
    """One lane of the world: the truth, what was learnt of it, and who is in it."""

    real: Reality
    cache: Cache
    figures: LaneFigures
    view: Lane
    usd: dict[str, tuple[float, float, float, float]]
    free_at: list[float]
    in_flight: int = 0
    new_answers: int = 0
    last_answer: int = 0
    seen: Figures = _NOTHING_SEEN  # as of the last look
    slow: float = 1.0
    changes: list[tuple[float, str, object]] = field(default_factory=list)


class World:
    """Runs one trace once."""

    def __init__(self, lanes: Iterable[Reality], seed: int = 0, skipped: int = 0) -> None:
        """`skipped`: calls of the trace before the first that comes here; their luck is passed over."""
        self._random = random.Random(seed)
        for _ in range(2 * skipped):
            self._random.gauss(0.0, 1.0)
        self._lengths = Lengths(OUTPUT_PRIOR)
        self._answers, self._draw = 0, (0.5 + skipped * _GOLDEN) % 1.0
        pools: dict[str, Cache] = {}
        self._lanes: list[_Lane] = []
        for real in lanes:
            cache = pools.setdefault(real.pool or real.backend, Cache(real.cache_ttl_s, real.cache_tokens))
            prior = real.prior or Prior(
                real.first_token_s, real.prefill_s_per_token, real.seconds_per_output_token, real.spread
            )
            self._lanes.append(_Lane(
                real, cache, LaneFigures(prior), _view(real, prior), _usd(real.rates),
                [0.0] * (real.slots or 0), changes=_changes(real),
            ))  # fmt: skip
        self._views: list[Lane] = [lane.view for lane in self._lanes]
        self._places = {lane.real.key: place for place, lane in enumerate(self._lanes)}
        self._changing = [lane for lane in self._lanes if lane.changes]
        self._done: list[tuple[float, int, int, Recorded, str, float, float, float, int]] = []
        self._count = 0

    def run(self, calls: Iterable[Recorded], route: Router) -> Iterable[tuple[Recorded, Outcome | None]]:
        """Calls must come in order of time. None: no lane could serve."""
        for call in calls:
            yield call, self._call(call, route)

    def _call(self, call: Recorded, route: Router) -> Outcome | None:
        now, views = call.at_s, self._views
        if self._done and self._done[0][0] <= now:
            self._finish(now)
        for lane in self._changing:
            if lane.changes and lane.changes[0][0] <= now:
                self._change(lane, now)
        cached = self._cached(call, now)
        self._draw = (self._draw + _GOLDEN) % 1.0
        ask = Ask(
            team=call.team, model=call.model, path=call.path, stream=call.stream, tags=call.tags, client=call.client,
            has_tools=call.has_tools, prompt_bytes=call.prompt_tokens * 4, prompt_tokens=call.prompt_tokens,
            max_output_tokens=call.max_output_tokens, wished_class=call.wished_class, hour=int(now // 3600) % 24, cached=cached,
            session=call.session, draw=self._draw,
        )  # fmt: skip
        steady, varied = self._random.gauss(0.0, 1.0), self._random.gauss(0.0, 1.0)
        choice = route(ask, views, self._lengths.of)
        if choice.lane is None:
            return None
        return self._serve(call, self._places[choice.lane.key], choice, cached.get(choice.lane.key, 0), steady, varied)

    def _cached(self, call: Recorded, now: float) -> dict[str, int]:
        if not call.blocks:
            return {lane.real.key: call.cached.get(lane.real.backend, 0) for lane in self._lanes} if call.cached else {}
        pools: dict[int, int] = {}
        found = {}
        for lane in self._lanes:
            tokens = pools.get(id(lane.cache))
            if tokens is None:
                tokens = pools[id(lane.cache)] = lane.cache.tokens(call, now)
            if tokens >= lane.real.cache_minimum:
                found[lane.real.key] = tokens
        return found

    def _serve(self, call: Recorded, place: int, choice: Choice, cached: int, steady: float, varied: float) -> Outcome:
        lane, now = self._lanes[place], call.at_s
        real, klass, start = lane.real, choice.klass, now
        uncached, output = call.prompt_tokens - cached, call.output_tokens
        alone, rest = alone_s(real, uncached, output, steady, varied, lane.slow)
        if real.slots is not None:
            start = max(now, heapq.heappop(lane.free_at))
            heapq.heappush(lane.free_at, start + alone + rest)
        first = start - now + alone
        total = first + rest
        r_uncached, r_cached, _, r_output = lane.usd[call.model]
        cost = uncached * r_uncached + cached * r_cached + output * r_output
        missed = misses(klass, first, total)
        if call.blocks:
            lane.cache.use(call, now)
        lane.in_flight += 1
        self._count += 1
        backlog = self._views[place].backlog_s
        if real.slots is not None:
            self._look(place)
        heapq.heappush(self._done, (now + total, self._count, place, call, klass.name, first, total, backlog, uncached))
        return Outcome(
            real.key, klass, cost, uncached, cached, output, first, total, start - now, missed,
            choice.expected_cost_usd, choice.expected_wait_s,
        )  # fmt: skip

    def _finish(self, now: float) -> None:
        """Answers that came meanwhile teach what they would teach the gateway."""
        done, looked = self._done, set()
        while done and done[0][0] <= now:
            at, _, place, call, klass, first, total, backlog, uncached = heapq.heappop(done)
            lane = self._lanes[place]
            lane.in_flight -= 1
            lane.new_answers += 1
            self._answers += 1
            lane.last_answer = self._answers
            lane.figures.saw(
                uncached_tokens=uncached, output_tokens=call.output_tokens, first_token_s=first if call.stream else None,
                total_s=total, now_s=at, backlog_s=backlog,
            )  # fmt: skip
            self._lengths.saw(call.team, call.model, klass, call.output_tokens, at)
            if lane.real.slots is not None or lane.new_answers >= _REFRESH_ANSWERS or lane.figures.samples < _REFRESH_ANSWERS:
                looked.add(place)
        for place in looked:
            self._look(place)

    def _look(self, place: int) -> None:
        lane = self._lanes[place]
        old, figures, prior = lane.view, lane.figures, lane.figures.prior
        if lane.new_answers >= _REFRESH_ANSWERS or figures.samples < _REFRESH_ANSWERS:
            lane.new_answers = 0
            seen = figures.view()
            lane.seen = seen
            lane.view = old = replace(
                old, first_token_factors=seen.first_token, seconds_per_output_token=prior.seconds_per_output_token * seen.pace,
                spread=seen.first_token_spread, pace_spread=seen.pace_spread, samples=seen.samples,
            )  # fmt: skip
        backlog = behind_s(lane.in_flight, lane.real.slots, lane.seen.service_s) if lane.real.slots else 0.0
        self._views[place] = replace(
            old, in_flight=lane.in_flight, backlog_s=backlog, rent=rent(lane.seen, backlog),
            unseen=self._answers - lane.last_answer,
        )  # fmt: skip

    def _change(self, lane: _Lane, now: float) -> None:
        while lane.changes and lane.changes[0][0] <= now:
            _, what, value = lane.changes.pop(0)
            if what == "slow":
                lane.slow = float(value)  # type: ignore[arg-type]
            elif what == "healthy":
                lane.view = replace(lane.view, healthy=bool(value), why_not="" if value else "down")
            else:
                lane.usd = _usd(value)  # type: ignore[arg-type]
                lane.view = replace(lane.view, models=_served(value))  # type: ignore[arg-type]
        self._look(self._places[lane.real.key])


def alone_s(real: Reality, uncached: int, output: int, steady: float, varied: float, slow: float = 1.0) -> tuple[float, float]:
    """Seconds to the first token, and from there to the end, with nobody before it; the luck is two standard normals."""
    sigma = real.spread
    first = (real.first_token_s + uncached * real.prefill_s_per_token) * slow * math.exp(sigma * steady - sigma * sigma / 2)
    return first, output * real.seconds_per_output_token * slow * math.exp(sigma * varied / 2 - sigma * sigma / 8)


def misses(klass: Klass, first_token_s: float, total_s: float) -> bool:
    limit, first_limit = klass.total_deadline_ms, klass.first_token_deadline_ms
    return (limit is not None and total_s * 1e3 > limit) or (first_limit is not None and first_token_s * 1e3 > first_limit)


def _view(real: Reality, prior: Prior) -> Lane:
    return Lane(
        key=real.key, backend=real.backend, name=real.name, models=_served(real.rates), queue_s=prior.first_token_s,
        prefill_s_per_token=prior.prefill_s_per_token, seconds_per_output_token=prior.seconds_per_output_token,
        spread=prior.spread, pace_spread=prior.spread / 2, slots=real.slots,
    )  # fmt: skip


def _served(rates: Mapping[str, Rates]) -> dict[str, Served]:
    return {model: Served(model, None, rate) for model, rate in rates.items()}


def _usd(rates: Mapping[str, Rates]) -> dict[str, tuple[float, float, float, float]]:
    return {model: filled(rate, None) for model, rate in rates.items()}


def _changes(real: Reality) -> list[tuple[float, str, object]]:
    found: list[tuple[float, str, object]] = [(at, "slow", factor) for at, factor in real.paces]
    found += [(at, "rates", rates) for at, rates in real.prices]
    for start, end in real.outages:
        found += [(start, "healthy", False), (end, "healthy", True)]
    return sorted(found, key=lambda change: change[0])
