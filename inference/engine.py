"""One thread that steps: drain the inbox, plan, run the model, draw, commit, hand out what is new.

Everything that changes a request happens on this thread, also decoding text and finding stop strings, so that the
usage of an answer, the counters and the tokens in the stream are one and the same number. Other threads only put
into the inbox, and read.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch

from inference.ask import Ask, Delta, Door, Load, QueueFull, Stopped, Usage
from inference.attention import Span
from inference.draft import DraftModel
from inference.model import Batch, Model
from inference.sampling import Logprob, Sampler
from inference.scheduler import FAST, STANDARD, Limits, Request, Scheduler, Work
from inference.storage import Storage
from inference.tally import Tally, Tokens
from inference.tokenizer import StreamDecoder, Tokenizer

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stream:
    """The answer as it comes. Leaving it early aborts the request."""

    def __init__(self, engine: "Engine", job: "_Job") -> None:
        self._engine, self._job = engine, job

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while True:
                delta = await self.next()
                yield delta
                if delta.reason is not None:
                    return
        finally:
            self.abort()

    async def next(self) -> Delta:
        """The next delta; there is none after one with a reason."""
        return await self._job.out.get()

    async def pour(self, tell: Callable[[Delta], None]) -> None:
        """Hand all that is left to `tell`, each delta in the turn of the loop in which it comes: no task wakes for it."""
        job, ended = self._job, asyncio.get_running_loop().create_future()

        def take(delta: Delta) -> None:
            if ended.done():
                return
            try:
                tell(delta)
            except Exception as error:
                ended.set_exception(error)
            else:
                if delta.reason is not None:
                    ended.set_result(None)

        while not job.out.empty():
            take(job.out.get_nowait())
        job.take = take
        await ended

    def abort(self) -> None:
        """End the request now, if it has not ended."""
        self._engine.abort(self._job)


@dataclass(eq=False, slots=True)
class _Job:
    request: Request
    ask: Ask
    sampler: Sampler
    decoder: StreamDecoder
    loop: asyncio.AbstractEventLoop
    out: "asyncio.Queue[Delta]" = field(default_factory=asyncio.Queue)
    told: Tokens = field(default_factory=Tokens)
    take: Callable[[Delta], None] = field(init=False)  # on the loop

    def __post_init__(self) -> None:
        self.take = self.out.put_nowait


class Engine:
    """A model, its cache and the thread that runs them."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, storage: Storage, *, limits: Limits | None = None, door: Door | None = None,
        threads: int = 2, draft: DraftModel | None = None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.storage, self.tally = model, tokenizer, storage, Tally()
        self.context = min(model.config.context, storage.tokens)
        self.scheduler = Scheduler(storage.pool, limits)
        self._door, self._threads, self._draft = door or Door(), threads, draft
        self._inbox: deque[_Job] = deque()
        self._aborts: deque[_Job] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._jobs: dict[Request, _Job] = {}
        self._outbox: defaultdict[asyncio.AbstractEventLoop, list[tuple[_Job, Delta]]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """Abort what runs and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=10)

    @property
    def stopped(self) -> bool:
        """It takes nothing more: told to, or its thread has failed."""
        return self._stopping

    def submit(self, ask: Ask, name: str) -> Stream:
        """Queue a request from a running event loop, or refuse it."""
        if self._stopping:
            raise Stopped
        self._refuse_if_full(ask)
        sampler = Sampler(ask.sampling, ask.prompt, ask.grammar)
        decoder = StreamDecoder(self.tokenizer, ask.stops, ask.cut)
        request = Request(name, list(ask.prompt), ask.most, ask.lane, time.monotonic(), ask.salt, ask.priority)
        if self._draft is not None and ask.lane.speculates:
            request.proposer = self._draft.proposer()
        job = _Job(request, ask, sampler, decoder, asyncio.get_running_loop())
        with self._wake:
            self._inbox.append(job)
            self._wake.notify()
        return Stream(self, job)

    def abort(self, job: "_Job") -> None:
        """End a request early; blocks are free before the next step."""
        if job.request.finished is None:
            with self._wake:
                self._aborts.append(job)
                self._wake.notify()

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks before the next step."""
        with self._wake:
            self._commands.append(self.storage.pool.clear)
            self._wake.notify()

    async def between_steps(self, call: Callable[[], T]) -> T:
        """What `call` gives when the engine's thread runs it before the next step: the way to look at its state."""
        loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def run() -> None:
            found = call()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle_future, answer, found)

        with self._wake:
            self._commands.append(run)
            self._wake.notify()
        return cast(T, await answer)

    def load(self) -> Load:
        """How busy it is, without waiting for the step."""
        counts = self.storage.pool.counts()
        waiting = self._waiting()
        running = list(self.scheduler.running)
        return Load(
            running=_by_lane(running),
            waiting=_by_lane(waiting),
            waiting_tokens=sum(len(request.tokens) for request in waiting),
            blocks=self.storage.pool.blocks,
            free_blocks=counts.free,
            cached_blocks=counts.cached,
            prefill_tokens_per_s=self.tally.prefill_speed,
        )

    def _refuse_if_full(self, ask: Ask) -> None:
        waiting = [request for request in self._waiting() if request.lane is ask.lane]
        tokens = sum(len(request.tokens) for request in waiting)
        if len(waiting) >= self._door.requests:
            reason = "requests"
        elif tokens and tokens + len(ask.prompt) > self._door.tokens:
            reason = "tokens"
        else:
            return
        self.tally.refused(reason)
        raise QueueFull(reason, max(1, round(tokens / max(1.0, self.tally.prefill_speed))))

    def _waiting(self) -> list[Request]:
        return [*self.scheduler.waiting, *(job.request for job in list(self._inbox))]

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._settle():
                    works = self.scheduler.plan(time.monotonic())
                    if works:
                        self._step(works)
                    self._hand_out()
        except Exception:
            log.exception("the engine's thread has failed and ends; /health says so")
        finally:
            self._stopping = True
            for job in [*self._jobs.values(), *self._inbox]:
                self._end_early(job, "abort")
            self._hand_out()

    def _settle(self) -> bool:
        """Take in what came since the last step; sleep while there is nothing to do. False to end."""
        with self._wake:
            busy = self.scheduler.running or self.scheduler.waiting
            while not (busy or self._inbox or self._aborts or self._commands or self._stopping):
                self._wake.wait()
            aborts, commands = list(self._aborts), list(self._commands)
            self._aborts.clear()
            self._commands.clear()
            while self._inbox:
                job = self._inbox[0]
                self._jobs[job.request] = job
                self.scheduler.add(job.request)
                self._inbox.popleft()
        for command in commands:
            command()
        for job in aborts:
            self._end_early(job, "abort")
        return not self._stopping

    def _step(self, works: list[Work]) -> None:
        start = time.monotonic()
        batch = self._batch(works)
        try:
            logits = self.model.forward(batch, self.storage.cache)[:, : self.tokenizer.size]  # what has no word is not said
            best = logits.numpy().argmax(-1).tolist()  # five times as fast as torch's
        except Exception:
            log.exception("a forward pass failed; its requests end")
            for work in works:
                self._end_early(self._jobs[work.request], "error")
            return
        now, row = time.monotonic(), 0
        self.tally.step(works, now - start, self.scheduler.preemptions, self.storage.spill)
        for work in works:
            rows = 1 + len(work.drafts) if work.samples else 0
            try:
                self._finish_work(work, logits[row : row + rows], best[row : row + rows], now)
            except Exception:
                log.exception("a draw failed; its request ends")
                self._end_early(self._jobs[work.request], "error")
            row += rows

    def _batch(self, works: Sequence[Work]) -> Batch:
        """Flat rows of all works; wanted are the newest token's row and those of the drafts."""
        batch = Batch([], [], [])
        for work in works:
            row, count = len(batch.ids), len(work.tokens)
            batch.spans.append(Span(row, count, work.start, work.request.table, work.decode))
            batch.ids.extend(work.tokens)
            if work.samples:
                batch.wanted.extend(range(row + count - 1 - len(work.drafts), row + count))
        return batch

    def _finish_work(self, work: Work, logits: torch.Tensor, best: list[int], now: float) -> None:
        """Draw, cut at what ends the answer, commit, deliver."""
        job = self._jobs[work.request]
        if not work.samples:
            self.scheduler.commit(work, (), None)
            return
        drawn = job.sampler.verify(logits, best, len(work.request.tokens), work.drafts)
        text, kept, reason = self._accept(job, drawn.tokens)
        self.tally.tokens(job.told, work, kept, now)
        self.scheduler.commit(work, drawn.tokens[:kept], reason)
        self._deliver(job, text, drawn.tokens[:kept], drawn.logprobs[:kept], reason)

    def _accept(self, job: _Job, tokens: Sequence[int]) -> tuple[str, int, str | None]:
        """The text of new tokens, how many of them count, and why the answer ends, if it does."""
        text = ""
        for kept, token in enumerate(tokens, 1):
            if token == self.tokenizer.eos and not job.ask.ignore_eos:
                return text + job.decoder.finish(), kept, "stop"
            text += job.decoder.push(token)
            if job.decoder.stopped:
                return text, kept, "stop"
            if job.ask.grammar is not None and job.ask.grammar.complete and kept == len(tokens):
                return text + job.decoder.finish(), kept, "stop"
            if job.request.output + kept >= job.request.most:
                text += job.decoder.finish()
                return text, kept, "stop" if job.decoder.stopped else "length"
        return text, len(tokens), None

    def _deliver(
        self, job: _Job, text: str, tokens: tuple[int, ...], logprobs: tuple[Logprob, ...], reason: str | None
    ) -> None:
        request = job.request
        delta = Delta(text, tokens, logprobs, Usage(request.prompt, request.cached, job.told.generated), reason)
        if reason is not None:
            self._jobs.pop(request, None)
            self.tally.ended(request, reason, time.monotonic())
        self._outbox[job.loop].append((job, delta))

    def _hand_out(self) -> None:
        """What the step gave, to each event loop in one call."""
        while self._outbox:
            loop, deltas = self._outbox.popitem()
            try:
                loop.call_soon_threadsafe(_put, deltas)
            except RuntimeError:  # the loop is closed: nobody listens any more
                for job, _ in deltas:
                    self._end_early(job, "abort")

    def _end_early(self, job: _Job, reason: str) -> None:
        """Abort or error: what was found, computed and generated until now is counted."""
        request = job.request
        if request.finished is not None:
            return
        if not request.output:
            self.tally.prompt(request, request.prompt_seen)
        self.scheduler.abort(request, reason)
        self._deliver(job, "", (), (), reason)


def _put(deltas: Sequence[tuple[_Job, Delta]]) -> None:
    for job, delta in deltas:
        job.take(delta)


def _settle_future(answer: "asyncio.Future[Any]", found: object) -> None:
    if not answer.done():
        answer.set_result(found)


def _by_lane(requests: Sequence[Request]) -> dict[str, int]:
    return {lane.name: sum(request.lane is lane for request in requests) for lane in (FAST, STANDARD)}
