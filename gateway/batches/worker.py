"""Works the queue off: each call goes down a cheap lane in cheap hours, or any lane before its deadline is at risk.

One process of a machine does it (a lock on a file in DATA), whoever took the batch. Calls for an ordinary lane go through the
pipeline like any other; calls for a provider's batch API are held, journalled and booked without a cost when they are handed
over, and corrected when their answers come. What was under way when a process died is done again.
"""
from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import orjson
from msgspec.structs import replace

from gateway import dialects, late
from gateway.attempt import Outcome
from gateway.backends.fleet import Target
from gateway.batches.book import Batch, Book, Job, Line
from gateway.batches.desk import ENDPOINTS, result
from gateway.batches.jobs import Progress, ProviderBatches
from gateway.booking import Booking, Plan
from gateway.core.call import Call
from gateway.core.errors import GatewayError, Unauthorized
from gateway.core.ids import new_id
from gateway.core.outcome import Observed
from gateway.core.usage import TokenUsage
from gateway.holds import Holds
from gateway.pipeline import Pipeline
from gateway.prefix.chain import Chain
from gateway.relay import Client, Headers
from gateway.services import Services
from gateway.settings import QueueSettings
from router_policies.globs import first_match
from router_policies.policy import resolve_model
from router_policies.queueing import Pace, cheap_of, fits_provider_batch, kept_to, reserve_s, step
from router_policies.rules import Klass, Policy
from router_policies.types import Decision, Lane, Ranked

LOCK, BOOK = "queue.lock", "queue.db"
_TICK_S, _IDLE_S, _PRUNE_S = 0.25, 5.0, 3_600.0
_LOOK_AHEAD = 2_000
_JOB_CALLS, _JOB_BYTES = 10_000, 32 << 20
_AGAIN = frozenset({429, 503, 529})
_AGAIN_S, _RESTING_S = 10.0, 300.0
_KNOWN = 0.2
"""Weight of the newest call in the pace."""
_NOTHING = TokenUsage(uncached=0, cache_read=0, output=0)
_log = logging.getLogger("tollway.queue")


class _Collected(Client):
    """An answer that is kept."""

    __slots__ = ("body", "call_id", "retry_after_s", "status")

    def __init__(self) -> None:
        super().__init__()
        self.status, self.body, self.retry_after_s = 0, b"", 0.0

    def begin(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status

    def write(self, data: bytes) -> bool:
        self.body += data
        return True

    async def drained(self) -> None:
        return None

    async def end(self, data: bytes = b"") -> None:
        self.ended, self.body = True, self.body + data

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.begin(status, headers)
        told = dict(headers).get(b"retry-after", b"0")
        self.retry_after_s = float(told) if told.isdigit() else 0.0
        await self.end(body)


class _Ready(NamedTuple):
    """A line as a call, and the policy that it is decided by."""

    line: Line
    batch: Batch
    call: Call
    policy: Policy
    klass: Klass


class Worker:
    """`start` and `close`; `wake` when something came."""

    def __init__(self, via: Services, pipeline: Pipeline, holds: Holds, book: Book, limits: QueueSettings) -> None:
        self._via, self._pipeline, self._holds, self._book, self._limits = via, pipeline, holds, book, limits
        self._providers = ProviderBatches(via.upstream)
        self.pace = Pace(at_once=limits.at_once)
        self.now_s: Callable[[], float] = time.time
        self._under_way: set[asyncio.Task[None]] = set()
        self._resting: dict[str, float] = {}
        self._polled_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pruned_s = 0.0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="queue")

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        """Calls under way are left to their end; what waits goes on at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, *self._under_way, return_exceptions=True)

    async def _run(self) -> None:
        lock = await self._locked(self._via.settings.data / LOCK)
        try:
            if (count := await asyncio.to_thread(self._book.recover)) > 0:
                _log.info("queue: %d calls were under way at the last stop and are made again", count)
            while True:
                self._wake.clear()
                busy = False
                try:
                    busy = await self._tick(self.now_s())
                except Exception:
                    _log.exception("queue: this turn failed, the next tries again")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _TICK_S if busy or self._under_way else self._idle_s())
        finally:
            lock.close()

    def _idle_s(self) -> float:
        return min(_IDLE_S, self._limits.poll_s)

    async def _locked(self, path: Path) -> IO[str]:
        """Returns once no other process works the queue."""
        file = open(path, "a", encoding="ascii")  # noqa: ASYNC230, SIM115  (held as long as the lock is)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError:
                await asyncio.sleep(_IDLE_S)

    async def _tick(self, now_s: float) -> bool:
        """One turn: providers, then what is over, then what goes next. Whether batches are open."""
        open_ = {
            batch.id: batch
            for batch in await asyncio.to_thread(self._book.batches, "status IN ('in_progress', 'cancelling')")
        }
        if open_:
            await self._look_after_jobs(now_s, open_)
            for batch in open_.values():
                await self._close(batch, now_s)
            await self._dispatch(now_s, open_)
        elif now_s - self._pruned_s > _PRUNE_S:
            self._pruned_s = now_s
            await asyncio.to_thread(self._book.prune, int((now_s - self._limits.keep_days * 86_400) * 1e6))
        return bool(open_)

    # which call goes when

    async def _dispatch(self, now_s: float, open_: Mapping[str, Batch]) -> None:
        jobs: dict[tuple[str, str], list[tuple[_Ready, Lane, Target]]] = defaultdict(list)
        for ahead, line in enumerate(await asyncio.to_thread(self._book.next, int(now_s * 1e6), _LOOK_AHEAD)):
            batch = open_.get(line.batch)
            if batch is None or batch.status != "in_progress":
                continue
            try:
                ready = self._ready(line, batch)
            except GatewayError as error:
                await self._finish(line, None, error.status, dialects.render_error(ENDPOINTS[batch.endpoint], error))
                continue
            what = step(ready.klass.wait, now_s, line.deadline_us / 1e6, batch.window_s, ahead, self.pace)
            policy = ready.policy
            if what == "hold":
                continue
            if what == "cheap":
                offline, live = self._offline(ready, now_s), self._live(ready)
                if offline is not None and fits_provider_batch(now_s, line.deadline_us / 1e6, batch.window_s, self.pace):
                    jobs[offline[0].key, batch.endpoint].append((ready, *offline))
                    continue
                if cheap_of(ready.klass.wait, live):
                    policy = kept_to(policy, ready.klass.wait.lanes)
                elif offline is not None:
                    continue
            if len(self._under_way) < self._limits.at_once:
                await asyncio.to_thread(self._book.begin, [line])
                task = asyncio.create_task(self._make(ready._replace(policy=policy)), name="queued-call")
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        for rows in jobs.values():
            await self._hand_over(rows, now_s)

    def _ready(self, line: Line, batch: Batch) -> _Ready:
        """Raises `GatewayError` for what can never be made."""
        record, tenant = self._via.keys.record(batch.key_id), self._via.keys.known(batch.key_id)
        at_us = time.time_ns() // 1_000
        ends = () if record is None else (record.revoked_us, record.expires_us)
        if tenant is None or not ends or any(end is not None and end <= at_us for end in ends):
            raise Unauthorized("the API key of this batch was revoked or has expired")
        dialect, wished, who = ENDPOINTS[batch.endpoint], batch.detail["class"], batch.detail["who"]
        policy = self._via.policies.current.for_team(batch.team)
        granted = wished in policy.classes and policy.client_may.choose(wished)
        call = Call(
            id=new_id("call_", at_us), dialect=dialect, tenant=tenant,
            sketch=dialects.read(dialect, line.body), body=line.body, path=batch.endpoint,
            headers={"x-tollway-class": wished}, at_us=at_us, **who,
        )  # fmt: skip
        return _Ready(line, batch, call, policy, policy.classes[wished if granted else policy.default_class])

    def _live(self, ready: _Ready) -> list[str]:
        """Names of the ordinary lanes that serve the call's model."""
        model = resolve_model(ready.policy, ready.call.sketch.model).model
        return [lane.name for lane in self._via.fleet.lanes(ready.call.dialect) if model in lane.models]

    def _offline(self, ready: _Ready, now_s: float) -> tuple[Lane, Target] | None:
        """The provider's batch that the class prefers, if it may use one."""
        policy, resolved = ready.policy, resolve_model(ready.policy, ready.call.sketch.model)
        if resolved.refusal is not None:
            return None
        found = [
            (ready.klass.place(lane.name), lane.key, lane, target)
            for lane, target in self._via.fleet.offline(ready.call.dialect, resolved.model)
            if self._resting.get(lane.key, 0.0) <= now_s and first_match(ready.klass.wait.lanes, lane.name) is not None
            and (not policy.backends or first_match(policy.backends, lane.backend) is not None)
        ]  # fmt: skip
        place, _, lane, target = min((one for one in found if one[0] is not None), key=lambda one: one[:2], default=(None,) * 4)
        return None if place is None or lane is None or target is None else (lane, target)

    # ordinary lanes

    async def _make(self, ready: _Ready) -> None:
        line, call, client, began = ready.line, ready.call, _Collected(), time.monotonic()
        try:
            await self._admitted(call, client, ready.policy)
        except GatewayError as error:
            client.status, client.body = error.status, dialects.render_error(call.dialect, error)
            client.retry_after_s = error.retry_after_s or 0.0
        except Exception:
            _log.exception("queue: a call failed inside the gateway")
            ours = GatewayError("the gateway failed on this call; its log says why")
            client.status, client.body = ours.status, dialects.render_error(call.dialect, ours)
        if client.status in _AGAIN:  # after the window it expires
            wait_s = max(client.retry_after_s, min(_AGAIN_S, ready.batch.window_s / 100))
            await asyncio.to_thread(self._book.again, [line], int((self.now_s() + wait_s) * 1e6))
        else:
            took_s = time.monotonic() - began
            self.pace = self.pace._replace(service_s=self.pace.service_s * (1 - _KNOWN) + took_s * _KNOWN)
            await self._finish(line, call.id, client.status, client.body)
        self._wake.set()

    async def _admitted(self, call: Call, client: Client, policy: Policy) -> None:
        admission = self._via.admission
        if not admission.may_enter():
            await admission.wait(call.tenant.team, patient=True)
        try:
            await self._pipeline.serve(call, client, policy)
        finally:
            admission.leave()

    async def _finish(self, line: Line, call_id: str | None, status: int, body: bytes) -> None:
        await asyncio.to_thread(self._book.finish, line, call_id, status, body)

    # providers' batches

    async def _hand_over(self, rows: Sequence[tuple[_Ready, Lane, Target]], now_s: float) -> None:
        """Once enough has come together, or the first has waited for it long enough."""
        oldest_s = min(ready.batch.at_us for ready, _, _ in rows) / 1e6
        if len(rows) < _JOB_CALLS and now_s - oldest_s < self._limits.collect_s:
            return
        lane, target, size, some = rows[0][1], rows[0][2], 0, list[_Ready]()
        for ready, _, _ in rows[:_JOB_CALLS]:
            size += len(ready.line.body)
            if size <= _JOB_BYTES or not some:
                some.append(ready)
        job = Job(
            id=new_id("job_", time.time_ns() // 1_000), lane=lane.key, at_us=int(now_s * 1e6),
            deadline_us=min(one.line.deadline_us - int(reserve_s(one.batch.window_s, 0, self.pace) * 1e6) for one in some),
            provider_id=None, status="sending",
            detail={"dialect": some[0].call.dialect, "calls": {_name(one.line): one.call.id for one in some}},
        )  # fmt: skip
        taken = {_name(line) for line in await asyncio.to_thread(self._book.begin, [one.line for one in some], job)}
        bookings, calls = list[tuple[str, Booking]](), list[tuple[str, bytes]]()
        for one in some:
            if _name(one.line) not in taken:
                continue
            try:
                body = self._body(one, lane, target)
                bookings.append((_name(one.line), await self._booking(one, lane, target, body)))
                calls.append((_name(one.line), body))
            except GatewayError as error:
                await self._finish(one.line, None, error.status, dialects.render_error(one.call.dialect, error))
        if not calls:
            await asyncio.to_thread(self._book.set_job, job.id, status="done")
            return
        try:
            provider_id = await self._providers.send(target, dialects.DIALECTS[target.dialect].PATH, calls)
        except GatewayError as error:
            _log.warning("queue: %s takes no batch now (%s)", lane.key, error)
            self._resting[lane.key] = now_s + _RESTING_S
            for _, booking in bookings:
                await booking.settle(Outcome(status="failed", error=str(error)))
            await self._give_back(job)
            return
        await asyncio.to_thread(self._book.set_job, job.id, status="sent", provider_id=provider_id)
        for name, booking in bookings:
            pending = Observed(pending=True, response_id=f"{job.id}/{name}")
            await booking.settle(Outcome(status="ok", sent=True, observed=pending))

    def _body(self, one: _Ready, lane: Lane, target: Target) -> bytes:
        model = resolve_model(one.policy, one.call.sketch.model).model
        fields = {name: value for name, value in target.set_fields.items() if name != "service_tier"}
        return dialects.request(
            one.call.dialect, target.dialect, one.call.body, one.call.sketch, model=lane.models[model].upstream,
            set_fields=fields, ask_usage=False,
        )  # fmt: skip

    async def _booking(self, one: _Ready, lane: Lane, target: Target, body: bytes) -> Booking:
        """Held and journalled as if it were sent by itself."""
        model, call = resolve_model(one.policy, one.call.sketch.model).model, one.call
        ranked = Ranked(lane, model, 0.0, 0.0, 0.0, 0.0)
        decision = Decision(
            klass=one.klass, model=model, ranked=(ranked,), refused=(), policy_version=one.policy.version,
            reason=f"class {one.klass.name}; queued, and handed to the batch of {lane.key}",
        )  # fmt: skip
        plan = Plan(
            call=replace(call, body=b""), decision=decision, changes=(), chain=Chain((), ()), lanes_seen=(),
            prompt_tokens=max(len(body) // 4, 1), cached={},
        )  # fmt: skip
        booking = Booking(
            plan=plan, via=self._via, number=1, id=f"{call.id}-1", ranked=ranked, target=target, predicted_read_tokens=0,
            sent=body,
        )  # fmt: skip
        left_s = max(one.line.deadline_us / 1e6 - self.now_s(), 0.0)
        until = time.monotonic() + left_s
        held = await self._holds.take(call, one.policy, ranked, target, booking.id, len(body), deadline=until)
        booking.hold = held.hold
        await booking.open()
        return booking

    async def _look_after_jobs(self, now_s: float, open_: Mapping[str, Batch]) -> None:
        for job in await asyncio.to_thread(self._book.jobs):
            if job.status == "sending" or job.provider_id is None:  # the process died between the two
                _log.warning("queue: whether %s got the batch %s is not known; its calls are made again", job.lane, job.id)
                await self._give_back(job)
                continue
            target = self._target(job)
            if target is None:
                _log.warning("queue: the lane %s of batch %s is gone; its calls are made again", job.lane, job.provider_id)
                await self._give_back(job)
                continue
            if now_s - self._polled_s.get(job.id, 0.0) < self._limits.poll_s:
                continue
            self._polled_s[job.id] = now_s
            try:
                await self._look_after(job, target, job.provider_id, now_s, open_)
            except GatewayError as error:
                _log.warning("queue: batch %s of %s cannot be looked at now (%s)", job.provider_id, job.lane, error)

    def _target(self, job: Job) -> Target | None:
        return self._via.fleet.offline_road(job.lane, job.detail["dialect"])

    async def _look_after(self, job: Job, target: Target, provider_id: str, now_s: float, open_: Mapping[str, Batch]) -> None:
        progress = await self._providers.look(target, provider_id)
        if progress.state == "running":
            lines = await asyncio.to_thread(self._book.of_job, job.id)
            left = all(line.batch in open_ and open_[line.batch].status == "cancelling" for line in lines)
            if (left or now_s * 1e6 >= job.deadline_us) and "cancelled_us" not in job.detail:
                why = "cancelled" if left else "its calls are at risk"
                _log.info("queue: batch %s of %s is stopped: %s", provider_id, job.lane, why)
                await self._providers.cancel(target, provider_id)
                detail = orjson.dumps(job.detail | {"cancelled_us": int(now_s * 1e6)}).decode()
                await asyncio.to_thread(self._book.set_job, job.id, detail=detail)
            return
        if progress.state == "failed":
            _log.warning("queue: batch %s of %s failed: %s", provider_id, job.lane, progress.why)
            self._resting[job.lane] = now_s + _RESTING_S
        await self._deliver(job, target, progress)
        took_s = now_s - job.at_us / 1e6
        if progress.state == "ended" and "cancelled_us" not in job.detail:
            slower = max(took_s, self.pace.turnaround_s * (1 - _KNOWN) + took_s * _KNOWN)
            self.pace = self.pace._replace(turnaround_s=slower)

    async def _deliver(self, job: Job, target: Target, progress: Progress) -> None:
        """Answers to their batches and into the ledger; what was not answered waits again."""
        lines = {_name(line): line for line in await asyncio.to_thread(self._book.of_job, job.id)}
        for name, status, raw in await self._providers.answers(target, progress):
            line = lines.get(name)
            if line is None or status in _AGAIN or status >= 500:
                continue
            del lines[name]
            batch = (await asyncio.to_thread(self._book.batches, "id = ?", (line.batch,)))[0]
            status, body, seen = _read(ENDPOINTS[batch.endpoint], target, line, status, raw)
            await late.book(self._via, f"{job.id}/{name}", seen, target)
            await self._finish(line, job.detail["calls"].get(name), status, body)
        await self._give_back(job, list(lines.values()))

    async def _give_back(self, job: Job, lines: Sequence[Line] | None = None) -> None:
        """The job is over; calls that it did not answer cost nothing, and wait again."""
        left = await asyncio.to_thread(self._book.of_job, job.id) if lines is None else lines
        target = self._target(job)
        for line in left:
            if target is not None:
                await late.book(self._via, f"{job.id}/{_name(line)}", Observed(usage=_NOTHING), target)
        await asyncio.to_thread(self._book.again, left)
        await asyncio.to_thread(self._book.set_job, job.id, status="done")
        self._wake.set()

    # what is over

    async def _close(self, batch: Batch, now_s: float) -> None:
        if batch.status == "cancelling":
            await asyncio.to_thread(self._book.close_calls, batch.id, "cancelled")
        elif now_s * 1e6 >= batch.deadline_us:
            await asyncio.to_thread(self._book.close_calls, batch.id, "expired")
        counts = await asyncio.to_thread(self._book.counts, batch.id)
        if any(counts.get(state) for state in ("waiting", "running", "sent")):
            return
        await asyncio.to_thread(self._write_out, batch, counts)

    def _write_out(self, batch: Batch, counts: Mapping[str, int]) -> None:
        ended = "cancelled" if batch.status == "cancelling" else "expired" if counts.get("expired") else "completed"
        good, bad = list[bytes](), list[bytes]()
        for line in self._book.of_batch(batch.id):
            (good if line.status == 200 else bad).append(orjson.dumps(result(line)) + b"\n")
        at_us, files = time.time_ns() // 1_000, dict[str, str]()
        for kind, rows in (("output", good), ("errors", bad)):
            if rows:
                files[kind] = f"file-tw{batch.id[8:]}{kind[0]}"
                name = f"{batch.id}_{kind}.jsonl"
                self._book.put_file(files[kind], batch.team, name, "batch_output", at_us, b"".join(rows))
        self._book.set_batch(batch.id, ("in_progress", "cancelling"), status=ended, ended_us=at_us, **files)


def _read(dialect: str, target: Target, line: Line, status: int, raw: bytes) -> tuple[int, bytes, Observed]:
    """An answer in the client's dialect, with what it used."""
    if status != 200:
        return status, dialects.upstream_error(dialect, target.dialect, status, raw), Observed(usage=_NOTHING)
    try:
        body, seen = dialects.answer(dialect, target.dialect, raw, dialects.read(dialect, line.body))
    except GatewayError as error:
        return error.status, dialects.render_error(dialect, error), Observed(usage=_NOTHING)
    return 200, body, seen


def _name(line: Line) -> str:
    """What a provider is told as custom id: ours, for the client's may be anything."""
    return f"{line.batch}-{line.n}"

