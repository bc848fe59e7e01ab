"""Why prompts were not read from a cache: found beside the calls, in one thread, and told to their entries on the way to SQL.

A call that was answered is only remembered: a reference to its body, in a queue that is bounded by bytes. A turn that goes on
from the conversation's last one and was read from its cache takes that one's place. Explaining is worth less than any call, so
the thread works a tenth of the time at most, in slices, and what it cannot keep up with is dropped and counted.
"""
from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.core.entry import Entry
from gateway.core.outcome import Diagnosis
from gateway.prefix.explain import Miss, explain
from gateway.prefix.history import USUAL, History, Sent
from router_policies.types import Rates

QUEUE_BYTES = 4 << 20
"""Long prompts that came in a burst are dropped sooner than explained for many seconds, at the cost of the calls after them."""
BODY_BYTES = 2 << 20
"""Longer prompts are neither explained nor kept."""
WAIT_S = 0.25
"""As long as an entry waits for its explanation before it goes to the database without: a usual batch's time."""
LEAST_TOKENS = 256
"""Shorter prompts are cached by no provider, and should cost nothing here."""
_LINGER_S, _REST = 0.005, 9
_SLICE_S, _NAP_S = 0.001, 0.0002
_FOUND = 10_000

_PLACES = {
    "tools": "tools_changed", "system": "system_changed", "messages": "messages_changed", "instructions": "input_changed",
    "input": "input_changed", "text": "text_format_changed", "reasoning": "reasoning_effort_changed",
}  # fmt: skip
_NO_WORD = frozenset({"unavailable", "previous_message_not_found", "comparison_response_not_found"})

log = logging.getLogger("tollway.missed")


class Answered(Sent, kw_only=True):
    """An attempt whose usage the provider has told. `read`: tokens that it read from its cache, None where it does not say or
    where there is nothing to explain."""

    id: str
    read: int | None
    rates: Rates
    diagnosis: Diagnosis | None = None
    """What the provider itself says of a miss, where it was asked."""
    settled_s: float = 0.0
    """On the monotonic clock."""


class Misses:
    """One per process. `remember` and `fill` belong to the event loop; the thread is made when it is first needed."""

    def __init__(self, history: History | None = None, queue_bytes: int = QUEUE_BYTES) -> None:
        self._dropped = 0
        self._history = History() if history is None else history
        self._most = queue_bytes
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._queue: deque[Answered] = deque()
        self._bytes = 0
        self._latest: dict[tuple[str, str], Answered] = {}
        self._open: dict[str, float] = {}
        self._found: dict[str, Mapping[str, Any]] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._worked_s = 0.0

    def remember(self, call: Answered) -> None:
        """Microseconds, whatever the prompt's length."""
        if call.tokens < LEAST_TOKENS or not call.chain.keys or not self._history.max_bytes or self._closing:
            return
        if len(call.body) > min(BODY_BYTES, self._most):
            self._dropped += 1
            return
        key, call.settled_s = (call.domain, call.chain.session), time.monotonic()
        with self._lock:
            earlier = self._latest.get(key) if call.chain.session else None
            if earlier is not None and _goes_on(earlier, call):
                call.read = None
                if earlier.read is None:
                    self._bytes -= len(earlier.body)
                    earlier.body = b""
            if call.read is not None:
                self._open[call.id] = call.settled_s
            self._latest[key] = call
            self._queue.append(call)
            self._bytes += len(call.body)
            while self._bytes > self._most:
                gone = self._take()
                self._dropped += bool(gone.body)
                self._open.pop(gone.id, None)
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="misses", daemon=True)
                self._thread.start()

    async def fill(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries with their `miss`, as far as it is known within `WAIT_S` of their settling."""
        if not self._open and not self._found:
            return entries
        until = max([at for entry in entries if (at := self._open.get(entry.id))], default=0.0) + WAIT_S
        while time.monotonic() < until and any(entry.id in self._open for entry in entries):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return [replace(entry, miss=miss) if (miss := self._found.pop(entry.id, None)) else entry for entry in entries]

    def dropped_so_far(self) -> int:
        """Prompts that were not looked at, since others were in the way or they are too long."""
        return self._dropped

    def close(self) -> None:
        """What is in the queue is forgotten."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _take(self) -> Answered:
        """The oldest; its place in the tables goes with it."""
        oldest = self._queue.popleft()
        self._bytes -= len(oldest.body)
        key = (oldest.domain, oldest.chain.session)
        if self._latest.get(key) is oldest:
            del self._latest[key]
        return oldest

    def _work(self) -> None:
        self._history.pause = self._pause
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            time.sleep(_LINGER_S)               # the call that woke us is still being answered
            self._worked_s = time.thread_time()
            while not self._closing:
                with self._lock:
                    call = self._take() if self._queue else None
                if call is None:
                    break
                if call.body:
                    self._look_at(call)

    def _look_at(self, call: Answered) -> None:
        try:
            if call.read is not None and (found := self._why(call)) is not None:
                self._found[call.id] = found
                while len(self._found) > _FOUND:
                    self._found.pop(next(iter(self._found)), None)
            self._history.note(call)
        except Exception:                       # nobody waits for this: the next prompt may be one that we understand
            log.exception("a prompt's prefix could not be looked at")
        finally:
            self._open.pop(call.id, None)
            self._history.done()
        self._pause()

    def _pause(self) -> None:
        """Lets calls have the interpreter: after each slice for a moment, and nine tenths of the time in all."""
        worked = time.thread_time() - self._worked_s
        if worked > _SLICE_S and not self._closing:
            time.sleep(max(_NAP_S, _REST * worked))
            self._worked_s = time.thread_time()

    def _why(self, call: Answered) -> Mapping[str, Any] | None:
        """The entry's `miss`; None where nothing was missed."""
        read, rates = call.read or 0, call.rates
        if not self._history.worth(call, read):
            return None
        found = explain(self._history, call, read)
        if found is None:
            return None
        priced = rates.uncached is not None and rates.cached is not None
        lost = found.lost_tokens * (rates.uncached - rates.cached) // 1_000 if priced else None  # type: ignore[operator]
        told = {} if call.diagnosis is None else {"provider": _compared(call.diagnosis, found)}
        return {
            **told, "kind": found.kind, "path": found.path, "start": found.start, "end": found.end,
            "would_hit": found.would_hit_tokens, "lost": found.lost_tokens, "lost_nanos": lost, "earlier_us": found.earlier_us,
        }  # fmt: skip


def _compared(said: Diagnosis, found: Miss) -> Mapping[str, Any]:
    """The provider's own word for the miss, and whether it is ours too; None where it has none."""
    ours = "model_changed" if found.kind == "model" else _PLACES.get(found.path.split("/")[1] if found.path else "", "")
    agrees = None if said.reason in _NO_WORD else said.reason == ours
    return {"reason": said.reason, "tokens": said.tokens, "agrees": agrees}


def _goes_on(earlier: Answered, call: Answered) -> bool:
    """Whether a call is the usual next turn: nothing to explain, and it has all that the earlier one had."""
    keys = earlier.chain.keys
    return (call.read is None or call.read >= USUAL * earlier.tokens) and call.chain.keys[: len(keys)] == keys
