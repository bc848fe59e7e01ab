"""Model calls straight from the HTTP parser to the front: uvicorn's protocol with a short cut for the paths that are hot.

ASGI's own objects (a scope, two queues of messages, a task that waits for the hang-up) cost as much as all the rest of a
call. So a POST to a model path becomes a `Turn`, which takes the body as the parser gives it, runs the front once the body is
whole, writes the answer to the socket itself, and hears of a hang-up by `connection_lost`. Whatever else comes (other
paths and methods, HTTP/1.0, requests that a client sends ahead on the same connection) takes uvicorn's road.
"""
from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.web.front import COUNTED, DIALECT_OF_PATH, Front
from gateway.web.heads import Known
from gateway.web.turn import Turn

_HOT = {path.encode(): path for path in (*DIALECT_OF_PATH, COUNTED)}


class DoorProtocol(HttpToolsProtocol):
    """One client connection. Its model calls run one after the other in one task of its own."""

    cycle: Any
    _turn: Turn | None = None
    _known: Known | None = None
    _rests = True
    """Whether the parser stands between two requests."""
    _awaited_bytes = 0
    """Of the body of a request whose head was known, and which therefore does not pass through the parser."""
    _next: Turn | None = None
    _sleeper: asyncio.Future[None] | None = None
    _task: asyncio.Task[None] | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since_s = 0.0

    def data_received(self, data: bytes) -> None:
        began, turn = self._rests, self._turn
        super().data_received(data)
        if began and self._turn is not None and self._turn is not turn:
            self._known = known = self._turn.known(data)
            if known is not None:
                self.config.app.front.keep(known)  # type: ignore[union-attr]

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self.client[0] if self.client else ""

    # a head that has come before

    def again(self, data: bytes) -> bool:
        """Whether a packet was taken that needs no parser: it begins with a head that came before, or goes on with the body of
        such a one."""
        if self._awaited_bytes:
            self._more(data)
            return True
        known = self._known
        if known is None or not self._rests or not self.cycle.response_complete:
            return False
        front: Front = self.config.app.front  # type: ignore[union-attr]
        if (found := known.framed(data)) is None:
            if (known := front.known(data, self.peer)) is None or (found := known.framed(data)) is None:
                return False
            self._known = known
        start, size = found
        if not 0 < size <= front.max_body_bytes or len(data) - start > size:
            return False
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if len(data) - start == size and self._shed(front, known):
            return True
        turn = self.cycle = self._turn = Turn(self, front, known.visit.path, keep_alive=known.keep_alive)
        turn.head_known(known.visit, size)
        if len(data) - start == size:
            turn.take(data[start:])
            turn.whole()
            return True
        self._awaited_bytes = size
        if len(data) > start:
            self._more(data[start:])
        return True

    def _shed(self, front: Front, known: Known) -> bool:
        """Whether a call was refused before anything was made of it: under overload that has to cost the least of all."""
        if not known.keep_alive or front.draining or self.pipeline or self.flow.read_paused or self.transport.is_closing():
            return False
        answer = front.shed(known.visit, self.server_state.default_headers)
        if answer is None:
            return False
        self.transport.write(answer)
        self._rests_from_now()
        return True

    def _more(self, data: bytes) -> None:
        turn, left = self._turn, self._awaited_bytes - len(data)
        self._awaited_bytes = max(left, 0)
        if turn is not None:
            turn.take(data if left >= 0 else data[:left])
            if left <= 0:
                turn.whole()
        if left < 0:  # the next request, sent ahead
            self.data_received(data[left:])

    # the parser's callbacks

    def on_message_begin(self) -> None:
        self._rests = False
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        path = self._hot_path()
        if path is None:
            self._by_asgi()
            return
        turn = self.cycle = self._turn = Turn(
            self, self.config.app.front, path, keep_alive=self.parser.should_keep_alive()  # type: ignore[union-attr]
        )
        turn.head_came(self.headers, continues=self.expect_100_continue)

    def _hot_path(self) -> str | None:
        parser = self.parser
        path = _HOT.get(self.url.partition(b"?")[0])
        if path is None or parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or parser.should_upgrade():
            return None
        busy = self.cycle is not None and not self.cycle.response_complete
        return None if busy or getattr(self.config.app, "front", None) is None else path

    def _by_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is self._turn and self._turn is not None:
            self._turn.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._rests = True
        if self.cycle is self._turn and self._turn is not None:
            self._turn.whole()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._awaited_bytes = 0
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.lost()
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    # the calls of this connection

    def begin(self, turn: Turn) -> None:
        """The call runs on after the connection is gone; the server's shutdown waits for it."""
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None and self._task is not None:
            self._next = turn
            self.tasks.add(self._task)
            sleeper.set_result(None)
        elif self._task is None:
            self._next = turn
            self._task = self.loop.create_task(self._calls())
            self.tasks.add(self._task)
        else:  # the call before has been answered and is not through yet
            self.spawn(turn.run())

    async def _calls(self) -> None:
        """One after the other, until the connection ends."""
        while (turn := self._next) is not None and self._task is not None:
            self._next = None
            try:
                await turn.run()
            finally:
                self.tasks.discard(self._task)
            if self.transport.is_closing():
                return
            sleeper = self._sleeper = self.loop.create_future()
            await sleeper

    def on_response_complete(self) -> None:
        """Of a request that took uvicorn's road, or before one that was sent ahead."""
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    def spawn(self, work: Any) -> None:
        """For what is no call; the server's shutdown waits for it."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def turn_over(self, *, keep_alive: bool) -> None:
        self._turn = None
        if not keep_alive:
            self.transport.close()
        if self.pipeline or self.flow.read_paused or self.transport.is_closing():
            self.on_response_complete()
            return
        self._rests_from_now()

    def _rests_from_now(self) -> None:
        """A request has been answered; the next one may take its time."""
        self.server_state.total_requests += 1
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """One timer for all rests of a connection: it may go off early and is then set again."""
        self._idle_timer = None
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0.0 and not (self._rests and self.cycle.response_complete):
            left_s = self.timeout_keep_alive  # in the middle of something
        if left_s > 0.0:
            self._idle_timer = self.loop.call_later(left_s, self._look_at_clock)
        elif not self.transport.is_closing():
            self.transport.close()
