"""One try of a call at one lane: send, relay, look on, and settle before the last byte.

The bytes that complete an answer are held back until `settle` has returned, so whatever a client has seen whole is in
the ledger. Once a byte has gone out there is no second try: what breaks after it is told in the client's dialect.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from gateway import deadlines, dialects
from gateway.backends.fleet import Target
from gateway.backends.http import Answer, Stop, header
from gateway.backends.upstream import (
    Body,
    Broken,
    Dropped,
    Stalled,
    Stopped,
    Unanswered,
    Unreachable,
    Upstream,
    going_on,
    incoming,
    read,
    retry_after_s,
    there,
    unlocked,
)
from gateway.core.call import Call
from gateway.core.errors import GatewayError, UpstreamError, UpstreamTimeout
from gateway.core.outcome import Observed, Status
from gateway.dialects import fitting
from gateway.relay import Client
from gateway.stretch import Stretch

_TRY_ELSEWHERE = frozenset({401, 403, 429, 503, 529})
_GONE = frozenset({400, 403, 404})
_CREDENTIALS = frozenset({401, 403})
_JSON = (b"content-type", b"application/json")


class Outcome(msgspec.Struct, kw_only=True):
    """How the attempt went, as far as it has come; whole when `settle` sees it."""

    status: Status = "failed"
    http_status: int | None = None
    observed: Observed = Observed()
    produced: Callable[[], str] | None = None
    """The text that came, for an estimate where the answer was cut before its usage."""
    error: str | None = None
    sent: bool = False
    first_token_s: float | None = None
    total_s: float = 0.0
    retry_after_s: float | None = None
    by_deadline: bool = False
    """The call's own deadline ended it, which says nothing about the lane."""
    book_by_s: float | None = None
    """Until when (monotonic) an answer is worth waiting for the disk; None: however long it takes."""


Settle = Callable[[Outcome], Awaitable[Sequence[tuple[bytes, bytes]]]]
"""Books the attempt; gives the headers that tell its tokens and cost."""


class TryNext(Exception):
    """Nothing has reached the client and another lane may do better; `error` is what the client gets if none does.

    `again`: the same lane may take the call a little later, after `retry_after_s` if it said how long. `anew`: it will at once,
    since what it refused is left out then.
    """

    def __init__(
        self,
        error: GatewayError,
        answer: tuple[int, bytes, Sequence[tuple[bytes, bytes]]] | None = None,
        *,
        again: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.answer = answer
        self.again = again
        self.anew = False
        self.retry_after_s = retry_after_s


class Attempt(msgspec.Struct, kw_only=True):
    """What one try needs; `run` does it."""

    call: Call
    target: Target
    upstream_model: str
    set_fields: Mapping[str, Any]
    settle: Settle
    headers: Sequence[tuple[bytes, bytes]]
    """Our own answer headers: call, lane, class, reason."""
    stop_on_hang_up: bool = True
    keepalive_s: float = 0.0
    """Silence in a stream after which the client gets a ping; 0 is never."""
    deadline: float | None = None
    """By when (monotonic) the answer must have come, of a stream its first byte."""
    late_s: Callable[[], float] = float
    """How late the event loop comes."""
    begun: Callable[[], None] | None = None
    """Called when the answer's first token has come."""
    refused: Callable[[], None] | None = None
    """Called when the backend refuses a request that names something there: without it, it is asked again."""
    stretch: Stretch | None = None
    """What pays for a stream without an output limit."""
    stop: Stop = msgspec.field(default_factory=Stop)
    outcome: Outcome = msgspec.field(default_factory=Outcome)
    _names: fitting.Names = ()
    """Tools that the backend knows by shorter names."""
    _began: float = 0.0
    _late: bool = False
    _timer: asyncio.TimerHandle | None = None

    def request(self) -> bytes:
        """The body that goes upstream. Raises `BadRequest` for what the backend's dialect cannot say."""
        sketch, client, target = self.call.sketch, self.call.dialect, self.target
        body = dialects.request(
            client,
            target.dialect,
            self.call.body,
            sketch,
            model=self.upstream_model,
            set_fields=self.set_fields,
            ask_usage=sketch.stream and not sketch.wants_usage,
        )
        body = fitting.accepted(body, client, target)
        self._names = names = fitting.names_for(body, client, target)
        return fitting.shorten(body, names) if names else body

    def run(self, request: bytes, upstream: Upstream, client: Client) -> Awaitable[None]:
        """Answers the client, or raises `TryNext`, or `GatewayError` if nothing was sent out yet. Settles exactly once."""
        self._began = time.perf_counter()
        if self.deadline is None:
            return self._run(request, upstream, client)
        return self._run_until(self.deadline, request, upstream, client)

    async def _run_until(self, deadline: float, request: bytes, upstream: Upstream, client: Client) -> None:
        self.outcome.book_by_s = deadline + deadlines.DISK_S
        self._look_in(deadline - deadlines.early_s(self.call.came_s, deadline) - time.monotonic(), deadline, client)
        try:
            await self._run(request, upstream, client)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _look_in(self, seconds: float, deadline: float, client: Client) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._look_at_clock, deadline, client)

    def _look_at_clock(self, deadline: float, client: Client) -> None:
        if client.started:
            return
        left_s = deadline - deadlines.early_s(self.call.came_s, deadline, self.late_s()) - time.monotonic()
        if left_s > 0.0:
            self._look_in(min(left_s, deadlines.LOOK_S), deadline, client)
        else:
            self._late = True
            self.stop.set()

    async def _run(self, request: bytes, upstream: Upstream, client: Client) -> None:
        if self.stop_on_hang_up:
            client.on_gone(self.stop.set)
            if client.gone:
                self.stop.set()
        try:
            try:
                response = await upstream.send(self.target, request, going_on(self.target, self.call), self.stop)
            except Stopped as stopped:
                self.outcome.sent = stopped.sent
                await self._stopped("the client left before an answer")
                return
            except (Unreachable, Dropped) as error:
                raise await self._next("failed", error) from error
            except (Broken, Unanswered) as error:
                self.outcome.sent = True
                await self._settle("sent_unanswered", str(error))
                raise
            await self._answer(response, client)
        finally:
            client.on_gone(None)

    async def _answer(self, response: Answer, client: Client) -> None:
        self.outcome.http_status = response.status
        try:
            if response.status >= 300:
                await self._refused(response, client)
            elif self.call.sketch.stream and _is_stream(response):
                await self._stream(response, client)
            else:
                await self._whole(response, client)
        finally:
            if not response.finished:
                await response.aclose()

    # the three kinds of answer

    async def _refused(self, response: Answer, client: Client) -> None:
        status = response.status
        try:
            body = unlocked(await read(response, self.stop), self.target)
        except (UpstreamError, Stopped):
            body = b""
        if status < 400:
            error: GatewayError = UpstreamError("the model backend answered with a redirect, which is not followed")
            await self._settle("failed", f"redirect {status}")
            raise error
        self.outcome.retry_after_s = retry_after_s(response)
        shown = dialects.upstream_error(self.call.dialect, self.target.dialect, status, body)
        headers = [*self.headers, *(h for h in incoming(response) if h[0] != b"content-type"), _JSON]
        if self.refused is not None and status in _GONE:
            self.refused()
            gone = await self._next("failed", UpstreamError(f"the model backend answered {status}"), (status, shown, headers))
            gone.anew = True
            raise gone
        if status in _TRY_ELSEWHERE:
            if status in _CREDENTIALS:
                refusal = UpstreamError("the model backend does not accept the gateway's credentials; tell the operator")
                refusal.code = "backend_credentials"
                raise await self._next("failed", refusal)
            raise await self._next("failed", UpstreamError(f"the model backend answered {status}"), (status, shown, headers))
        told = await self._settle("failed", f"the backend answered {status}")
        await client.respond(status, [*headers, *told], shown)

    async def _whole(self, response: Answer, client: Client) -> None:
        try:
            raw = there(response) or await read(response, self.stop)
            self._first_token()
            body, observed = dialects.answer(self.call.dialect, self.target.dialect, raw, self.call.sketch)
        except Stopped:
            await self._stopped("the client left")
            return
        except GatewayError as error:
            await self._settle(_status_of(error), str(error))
            raise
        self.outcome.observed = observed
        if observed.error is not None:
            raise await self._next("failed", UpstreamError(observed.error))
        self.outcome.produced = partial(dialects.answer_text, self.target.dialect, raw)
        told = await self._settle("ok", None)
        headers = [*self.headers, *told, *_content_type(incoming(response), b"application/json")]
        if self._names:
            body = fitting.restore(body, self._names)
        client.complete = True
        await client.respond(response.status, headers, body)

    async def _stream(self, response: Answer, client: Client) -> None:
        relay = dialects.relay(
            self.call.dialect, self.target.dialect, self.call.sketch, hide_usage=not self.call.sketch.wants_usage
        )
        if self._names:
            relay = fitting.Restored(relay, self._names)
        outcome = self.outcome
        outcome.produced = relay.produced
        headers = [*self.headers, *_content_type(incoming(response), b"text/event-stream; charset=utf-8")]
        headers.append((b"cache-control", b"no-cache"))
        behind, stretch = False, self.stretch

        def take(chunk: bytes) -> bool:
            """Runs in the moment in which the bytes come; False: the client must catch up, or nothing more is wanted."""
            nonlocal behind
            out = relay.feed(chunk)
            if outcome.first_token_s is None and relay.started:
                self._first_token()
            if out:
                if not client.started:
                    if relay.observed.error is not None and not relay.started:
                        return False
                    client.begin(response.status, headers)
                    outcome.book_by_s = None  # the deadline was for the first byte
                    if self.keepalive_s:
                        client.ping(self.keepalive_s, dialects.PING[self.call.dialect])
                behind = not client.write(out)
            return not (behind or relay.ended)

        body = Body(response, self.stop)
        feed = take if stretch is None else partial(stretch.ration, relay, take)
        try:
            while True:
                if stretch is None or not stretch.rest:
                    await body.pump(feed)
                    if not (behind or (stretch is not None and stretch.rest)):
                        break
                elif not await stretch.more(relay):
                    await self._out_of_money(relay, client, stretch.why)
                    return
                elif feed(stretch.rest):
                    continue
                if behind:
                    behind = False
                    await client.drained()
                if relay.ended:
                    break
            await self._end_of_stream(relay, client, response.status, headers)
        except Stopped:
            outcome.observed = relay.observed
            await self._stopped("the client left")
        except GatewayError as error:
            outcome.observed = relay.observed
            await self._settle(_status_of(error), str(error))
            if not client.started:
                if not relay.started:
                    raise
                client.begin(response.status, headers)
            await client.end(relay.fail(error))

    async def _end_of_stream(
        self, relay: dialects.StreamRelay, client: Client, status: int, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        last = relay.finish()
        self.outcome.observed = observed = relay.observed
        if observed.error is not None:
            if not client.started:
                raise await self._next("failed", UpstreamError(observed.error))
            await self._settle("cut", observed.error)
            await client.end(relay.fail(UpstreamError(observed.error)))
            return
        if not relay.complete and not relay.ended:
            raise Unterminated("the model backend's answer ended in the middle")
        await self._settle("ok", None)
        if not client.started:
            client.begin(status, headers)
        client.complete = True
        await client.end(last)

    async def _out_of_money(self, relay: dialects.StreamRelay, client: Client, why: str) -> None:
        """Ends the stream as if its output limit had been reached; what came is booked."""
        self.outcome.observed = relay.observed
        await self._settle("cut", why)
        await client.end(relay.cut())

    # small steps

    async def _stopped(self, why: str) -> None:
        """Ended from our side: the client left, or its time is up. Raises `DeadlineExceeded`."""
        if not self._late:
            await self._settle("client_gone", why)
            return
        self.outcome.by_deadline = True
        late = DeadlineExceeded("the call's deadline passed before the model backend had answered")
        await self._settle("sent_unanswered" if self.outcome.sent or self.outcome.http_status else "failed", str(late))
        raise late

    def _first_token(self) -> None:
        self.outcome.first_token_s = time.perf_counter() - self._began
        if self.begun is not None:
            self.begun()

    def _settle(self, status: Status, error: str | None) -> Awaitable[Sequence[tuple[bytes, bytes]]]:
        outcome = self.outcome
        outcome.status, outcome.error = status, error
        outcome.total_s = time.perf_counter() - self._began
        return self.settle(outcome)

    async def _next(
        self, status: Status, error: GatewayError, answer: tuple[int, bytes, Sequence[tuple[bytes, bytes]]] | None = None
    ) -> TryNext:
        told = await self._settle(status, str(error))
        again = answer is not None or isinstance(error, Unreachable)
        if answer is not None:
            answer = (answer[0], answer[1], [*answer[2], *told])
        return TryNext(error, answer, again=again, retry_after_s=self.outcome.retry_after_s)


class DeadlineExceeded(UpstreamTimeout):
    """The least of what the class, the client and its library allow was over."""

    code = "deadline_exceeded"


class Unterminated(UpstreamError):
    """The stream ended without a finish reason."""

    code = "upstream_unterminated"


def _status_of(error: GatewayError) -> Status:
    if isinstance(error, Stalled):
        return "stalled"
    if isinstance(error, Unterminated):
        return "unterminated"
    if isinstance(error, dialects.Malformed):
        return "malformed"
    return "cut"


def _is_stream(response: Answer) -> bool:
    return "json" not in header(response, b"content-type")


def _content_type(headers: list[tuple[bytes, bytes]], default: bytes) -> list[tuple[bytes, bytes]]:
    for name, _ in headers:
        if name == b"content-type":
            return headers
    return [*headers, (b"content-type", default)]
