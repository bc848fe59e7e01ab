"""Works the queue off: each call goes down a cheap lane in cheap hours, or any lane before its deadline is at risk.

One process does it (`turn.py`), whoever took the batch. Calls for an ordinary lane go through the
pipeline like any other; calls for a provider's batch API are handed over. What was under way when a process died is done again.
"""
from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson

from gateway import dialects
from gateway.batches.book import Batch, Book, Line
from gateway.batches.collected import Collected
from gateway.batches.desk import ENDPOINTS, result
from gateway.batches.handover import AGAIN, Handover, Offered
from gateway.batches.pacing import Pacing
from gateway.batches.ready import Ready, live, offline, ready
from gateway.batches.shared_book import QueueAway
from gateway.batches.turn import Turn
from gateway.core import clock
from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.holds import Holds
from gateway.pipeline import Pipeline
from gateway.relay import Client
from gateway.services import Services
from gateway.settings_file import QueueSettings
from router_policies.queueing import cheap_of, fits_provider_batch, kept_to, step
from router_policies.rules import Policy

_TICK_S, _IDLE_S, _PRUNE_S = 0.25, 5.0, 3_600.0
_LOOK_AHEAD = 2_000
_AGAIN_S = 10.0
_log = logging.getLogger("tollway.queue")


class Worker:
    """`start` and `close`; `wake` when something came."""

    def __init__(self, via: Services, pipeline: Pipeline, holds: Holds, book: Book, turn: Turn, limits: QueueSettings) -> None:
        self._via, self._pipeline, self._book, self._limits = via, pipeline, book, limits
        self._turn = turn
        self.pacing = Pacing(limits.at_once)
        self._handover = Handover(via, holds, book, limits, self.pacing, self.wake)
        self._under_way: set[asyncio.Task[None]] = set()
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
        try:
            while True:
                await self._turn.take()
                await self._work()
                _log.warning("queue: another process may have its turn now")
        finally:
            await self._turn.close()

    async def _work(self) -> None:
        """As long as it is this process's turn. What it began in an earlier one ends first."""
        recovered = False
        await asyncio.gather(*self._under_way, return_exceptions=True)
        while await self._turn.held():
            self._wake.clear()
            busy = False
            try:
                if not recovered and (count := await asyncio.to_thread(self._book.recover)) > 0:
                    _log.info("queue: %d calls were under way at the last stop and are made again", count)
                recovered = True
                busy = await self._tick(self.pacing.now_s())
            except GatewayError as error:
                _log.warning("queue: this turn failed, the next tries again: %s", error)
            except Exception:
                _log.exception("queue: this turn failed, the next tries again")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_S if busy or self._under_way else self._idle_s())

    def _idle_s(self) -> float:
        return min(_IDLE_S, self._limits.poll_s)

    async def _tick(self, now_s: float) -> bool:
        """One turn: providers, then what is over, then what goes next. Whether batches are open."""
        open_ = {
            batch.id: batch
            for batch in await asyncio.to_thread(self._book.batches, "status IN ('in_progress', 'cancelling')")
        }
        if open_:
            await self._handover.look_after(now_s, open_)
            for batch in open_.values():
                await self._close(batch, now_s)
            await self._dispatch(now_s, open_)
        elif now_s - self._pruned_s > _PRUNE_S:
            self._pruned_s = now_s
            await asyncio.to_thread(self._book.prune, int((now_s - self._limits.keep_days * 86_400) * 1e6))
        return bool(open_)

    # which call goes when

    async def _dispatch(self, now_s: float, open_: Mapping[str, Batch]) -> None:
        jobs: dict[tuple[str, str], list[Offered]] = defaultdict(list)
        for ahead, line in enumerate(await asyncio.to_thread(self._book.next, int(now_s * 1e6), _LOOK_AHEAD)):
            batch = open_.get(line.batch)
            if batch is None or batch.status != "in_progress":
                continue
            try:
                one = ready(self._via, line, batch)
            except GatewayError as error:
                await self._finish(line, None, error.status, dialects.render_error(ENDPOINTS[batch.endpoint], error))
                continue
            what = step(one.klass.wait, now_s, line.deadline_us / 1e6, batch.window_s, ahead, self.pacing.pace)
            policy = one.policy
            if what == "hold":
                continue
            if what == "cheap":
                away = offline(self._via.fleet, one, self._handover.resting, now_s)
                if away is not None and fits_provider_batch(now_s, line.deadline_us / 1e6, batch.window_s, self.pacing.pace):
                    jobs[away[0].key, batch.endpoint].append((one, *away))
                    continue
                if cheap_of(one.klass.wait, live(self._via.fleet, one)):
                    policy = kept_to(policy, one.klass.wait.lanes)
                elif away is not None:
                    continue
            if len(self._under_way) < self._limits.at_once:
                await asyncio.to_thread(self._book.begin, [line])
                task = asyncio.create_task(self._make(one._replace(policy=policy)), name="queued-call")
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        for rows in jobs.values():
            await self._handover.hand_over(rows, now_s)

    # ordinary lanes

    async def _make(self, one: Ready) -> None:
        line, call, client, began = one.line, one.call, Collected(), time.monotonic()
        try:
            await self._admitted(call, client, one.policy)
        except GatewayError as error:
            client.status, client.body = error.status, dialects.render_error(call.dialect, error)
            client.retry_after_s = error.retry_after_s or 0.0
        except Exception:
            _log.exception("queue: a call failed inside the gateway")
            ours = GatewayError("the gateway failed on this call; its log says why")
            client.status, client.body = ours.status, dialects.render_error(call.dialect, ours)
        if client.status in AGAIN:  # after the window it expires
            wait_s = max(client.retry_after_s, min(_AGAIN_S, one.batch.window_s / 100))
            await self._note(self._book.again, [line], int((self.pacing.now_s() + wait_s) * 1e6))
        else:
            self.pacing.served(time.monotonic() - began)
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
        await self._note(self._book.finish, line, call_id, status, body)

    async def _note(self, change: Callable[..., None], *values: Any) -> None:
        """What has happened is noted in the book, however long its database is away."""
        while True:
            try:
                await asyncio.to_thread(change, *values)
                return
            except QueueAway:
                await asyncio.sleep(_IDLE_S)

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
        at_us, files = clock.now_us(), dict[str, str]()
        for kind, rows in (("output", good), ("errors", bad)):
            if rows:
                files[kind] = f"file-tw{batch.id[8:]}{kind[0]}"
                name = f"{batch.id}_{kind}.jsonl"
                self._book.put_file(files[kind], batch.team, name, "batch_output", at_us, b"".join(rows))
        self._book.set_batch(batch.id, ("in_progress", "cancelling"), status=ended, ended_us=at_us, **files)
