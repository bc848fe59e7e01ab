"""What is handed to the providers' batch APIs: sent in pieces, held, journalled and booked without a cost, looked after, and
corrected when the answers come. What was not answered waits again.
"""
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import orjson
from msgspec.structs import replace

from gateway import dialects, late
from gateway.attempt import Outcome
from gateway.backends.fleet import Target
from gateway.batches.book import Batch, Book, Job, Line
from gateway.batches.desk import ENDPOINTS
from gateway.batches.jobs import Progress, ProviderBatches
from gateway.batches.pacing import Pacing
from gateway.batches.ready import Ready, name_of
from gateway.booking import Booking, Plan
from gateway.core import clock
from gateway.core.errors import Forbidden, GatewayError
from gateway.core.ids import new_id
from gateway.core.outcome import Observed
from gateway.core.usage import TokenUsage
from gateway.dialects import fitting
from gateway.dialects.attached import attached
from gateway.holds import Asked, Holds
from gateway.metering import estimate
from gateway.planning import output_cap
from gateway.prefix.chain import Chain
from gateway.services import Services
from gateway.settings_file import QueueSettings
from router_policies.queueing import reserve_s
from router_policies.types import Decision, Lane, Ranked

AGAIN = frozenset({429, 503, 529})
"""Statuses that are no answer for somebody who has the night."""
_JOB_CALLS, _JOB_BYTES = 10_000, 32 << 20
_RESTING_S = 300.0
_NOTHING = TokenUsage(uncached=0, cache_read=0, output=0)
_log = logging.getLogger("tollway.queue")

Offered = tuple[Ready, Lane, Target]
"""A call, and the provider's batch that it is for."""


class Handover:
    """All jobs at all providers; one process of a machine has it. `wake`: told when calls wait again."""

    def __init__(
        self, via: Services, holds: Holds, book: Book, limits: QueueSettings, pacing: Pacing, wake: Callable[[], None]
    ) -> None:  # fmt: skip
        self._via, self._holds, self._book, self._limits = via, holds, book, limits
        self._pacing, self._wake = pacing, wake
        self._providers = ProviderBatches(via.upstream)
        self._polled_s: dict[str, float] = {}
        self.resting: dict[str, float] = {}
        """Lanes that took no batch lately, and until when they are left alone."""

    async def hand_over(self, rows: Sequence[Offered], now_s: float) -> None:
        """Once enough has come together, or the first has waited for it long enough."""
        oldest_s = min(ready.batch.at_us for ready, _, _ in rows) / 1e6
        if len(rows) < _JOB_CALLS and now_s - oldest_s < self._limits.collect_s:
            return
        lane, target, size, some = rows[0][1], rows[0][2], 0, list[Ready]()
        for ready, _, _ in rows[:_JOB_CALLS]:
            size += len(ready.line.body)
            if size <= _JOB_BYTES or not some:
                some.append(ready)
        job = Job(
            id=new_id("job_", clock.now_us()), lane=lane.key, at_us=int(now_s * 1e6),
            deadline_us=min(one.line.deadline_us - self._reserve_us(one) for one in some),
            provider_id=None, status="sending",
            detail={"dialect": some[0].call.dialect, "calls": {one.name: one.call.id for one in some}},
        )  # fmt: skip
        taken = {name_of(line) for line in await asyncio.to_thread(self._book.begin, [one.line for one in some], job)}
        bookings, calls = list[tuple[str, Booking]](), list[tuple[str, bytes]]()
        for one in some:
            if one.name not in taken:
                continue
            try:
                booking = await self._booking(one, lane, target)
                bookings.append((one.name, booking))
                calls.append((one.name, booking.sent))
            except GatewayError as error:
                await self._finished(one.line, None, error.status, dialects.render_error(one.call.dialect, error))
        if not calls:
            await asyncio.to_thread(self._book.set_job, job.id, status="done")
            return
        try:
            provider_id = await self._providers.send(target, dialects.DIALECTS[target.dialect].PATH, calls)
        except GatewayError as error:
            _log.warning("queue: %s takes no batch now (%s)", lane.key, error)
            self.resting[lane.key] = now_s + _RESTING_S
            for _, booking in bookings:
                await booking.settle(Outcome(status="failed", error=str(error)))
            await self._give_back(job)
            return
        await asyncio.to_thread(self._book.set_job, job.id, status="sent", provider_id=provider_id)
        for name, booking in bookings:
            pending = Observed(pending=True, response_id=f"{job.id}/{name}")
            await booking.settle(Outcome(status="ok", sent=True, observed=pending))

    def _reserve_us(self, one: Ready) -> int:
        return int(reserve_s(one.batch.window_s, 0, self._pacing.pace) * 1e6)

    def _body(self, one: Ready, lane: Lane, target: Target, limit: int | None) -> bytes:
        """`limit`: most output tokens, where the call names none itself."""
        model = one.resolved.model
        set_fields = {name: value for name, value in target.set_fields.items() if name != "service_tier"}
        if limit is not None:
            set_fields[dialects.limit_field(target.dialect, lane.models[model].upstream)] = limit
        left = dict.fromkeys(target.left_out(one.call.dialect, one.call.body, one.call.sketch.spans))
        body = dialects.request(
            one.call.dialect, target.dialect, one.call.body, one.call.sketch, model=lane.models[model].upstream,
            set_fields={**left, **set_fields}, ask_usage=False,
        )  # fmt: skip
        body = fitting.accepted(body, one.call.dialect, target)
        return fitting.shorten(body, fitting.names_for(body, one.call.dialect, target))

    async def _booking(self, one: Ready, lane: Lane, target: Target) -> Booking:
        """Held and journalled as if it were sent by itself, with an output limit where team or budget set one."""
        model, call, cap = one.resolved.model, one.call, output_cap(one.call, one.policy)
        if one.policy.unpriced == "refuse" and lane.models[model].rates.uncached is None:
            raise Forbidden(f"no price is known for {model}, and the policy refuses what is not priced")
        body = self._body(one, lane, target, cap)
        if cap is not None:
            call = replace(call, sketch=replace(call.sketch, max_output_tokens=cap))
        ranked = Ranked(lane, model, 0.0, 0.0, 0.0, 0.0)
        decision = Decision(
            klass=one.klass, model=model, ranked=(ranked,), refused=(), policy_version=one.policy.version,
            reason=f"class {one.klass.name}; queued, and handed to the batch of {lane.key}",
        )  # fmt: skip
        held = attached(call.body, call.sketch.parts)
        plan = Plan(
            call=replace(call, body=b""), decision=decision, changes=(), chain=Chain(), lanes_seen=(),
            prompt_tokens=estimate.usual_input(len(body), held), cached={},
        )  # fmt: skip
        booking = Booking(
            plan=plan, via=self._via, number=1, id=f"{call.id}-1", ranked=ranked, target=target, predicted_read_tokens=0,
            sent=body, left_out=target.left_out(call.dialect, call.body, call.sketch.spans),
        )  # fmt: skip
        left_s = max(one.line.deadline_us / 1e6 - self._pacing.now_s(), 0.0)
        until = time.monotonic() + left_s
        asked = Asked(booking.id, call, ranked, target, len(body), held, deadline=until)
        taken = await self._holds.take(one.policy, asked)
        booking.hold = taken.hold
        if taken.limit is not None:
            booking.sent = self._body(one, lane, target, taken.limit)
        booking.open()
        return booking

    async def look_after(self, now_s: float, open_: Mapping[str, Batch]) -> None:
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
                await self._look_after_one(job, target, job.provider_id, now_s, open_)
            except GatewayError as error:
                _log.warning("queue: batch %s of %s cannot be looked at now (%s)", job.provider_id, job.lane, error)

    def _target(self, job: Job) -> Target | None:
        return self._via.fleet.offline_road(job.lane, job.detail["dialect"])

    async def _look_after_one(
        self, job: Job, target: Target, provider_id: str, now_s: float, open_: Mapping[str, Batch]
    ) -> None:  # fmt: skip
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
            self.resting[job.lane] = now_s + _RESTING_S
        await self._deliver(job, target, progress)
        if progress.state == "ended" and "cancelled_us" not in job.detail:
            self._pacing.back(now_s - job.at_us / 1e6)

    async def _deliver(self, job: Job, target: Target, progress: Progress) -> None:
        """Answers to their batches and into the ledger; what was not answered waits again."""
        lines = {name_of(line): line for line in await asyncio.to_thread(self._book.of_job, job.id)}
        for name, status, raw in await self._providers.answers(target, progress):
            line = lines.get(name)
            if line is None or status in AGAIN or status >= 500:
                continue
            del lines[name]
            batch = (await asyncio.to_thread(self._book.batches, "id = ?", (line.batch,)))[0]
            status, body, seen = _read(ENDPOINTS[batch.endpoint], target, line, status, raw)
            await late.book(self._via, f"{job.id}/{name}", seen, target)
            await self._finished(line, job.detail["calls"].get(name), status, body)
        await self._give_back(job, list(lines.values()))

    async def _give_back(self, job: Job, lines: Sequence[Line] | None = None) -> None:
        """The job is over; calls that it did not answer cost nothing, and wait again."""
        left = await asyncio.to_thread(self._book.of_job, job.id) if lines is None else lines
        target = self._target(job)
        for line in left:
            if target is not None:
                await late.book(self._via, f"{job.id}/{name_of(line)}", Observed(usage=_NOTHING), target)
        await asyncio.to_thread(self._book.again, left)
        await asyncio.to_thread(self._book.set_job, job.id, status="done")
        self._wake()

    async def _finished(self, line: Line, call_id: str | None, status: int, body: bytes) -> None:
        await asyncio.to_thread(self._book.finish, line, call_id, status, body)


def _read(dialect: str, target: Target, line: Line, status: int, raw: bytes) -> tuple[int, bytes, Observed]:
    """An answer in the client's dialect, with what it used."""
    if status != 200:
        return status, dialects.upstream_error(dialect, target.dialect, status, raw), Observed(usage=_NOTHING)
    try:
        body, seen = dialects.answer(dialect, target.dialect, raw, dialects.read(dialect, line.body))
    except GatewayError as error:
        return error.status, dialects.render_error(dialect, error), Observed(usage=_NOTHING)
    return 200, fitting.restore(body, fitting.names_for(line.body, dialect, target)), seen
