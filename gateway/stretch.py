"""Streams that name no output limit are paid for in steps, so that one of them does not reserve a model's whole maximum.

A hold covers so many tokens; before they are used up it is raised by a step, and where no money is left the stream is cut. How
much has come is reckoned on the safe side, a token for three bytes of text, and looked at only when it may matter: text is
part of the bytes that came, so it cannot run out before those bytes have. Bytes that it may not cover wait.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from gateway.budgets import AlreadySettled, Budgets, Hold, Refused, StoreAway

STEP_TOKENS = 4_096
LIVE_US = 120 * 1_000_000
"""How long the hold of a stream stands without being renewed."""
RENEW_S = 60
_BYTES_PER_TOKEN = 3
_ASK_BELOW = STEP_TOKENS // 4
_LEAST_TOKENS = 64
"""With less left the stream ends: it would be passed on by single bytes."""


class Relay(Protocol):
    """What is looked at of a stream."""

    @property
    def complete(self) -> bool: ...

    def produced(self) -> str: ...


class Stretch:
    """What one stream may generate. `nanos` is the hold that so many output tokens need, `affordable` the tokens that so large
    a hold pays for, `most_tokens` the model's maximum."""

    def __init__(
        self, budgets: Budgets, hold: Hold, tokens: int, most_tokens: int, nanos: Callable[[int], int],
        affordable: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self.hold, self.tokens = hold, tokens
        self._budgets, self._most, self._nanos, self._affordable = budgets, most_tokens, nanos, affordable
        self._bytes = self._used = 0
        """Bytes that may come before the next look, and tokens used at the last one."""
        self._refused = False
        self.rest = b""
        """What came and may not be taken yet."""
        self.why = ""
        """What the budget said, once it has said no."""

    def ration(self, relay: Relay, take: Callable[[bytes], bool], chunk: bytes) -> bool:
        """Takes of a chunk what is paid for; False where it has to stop, and `rest` is what is left."""
        self.rest = b""
        while chunk:
            if len(chunk) > self._bytes and not relay.complete:
                self._look(relay)
                if not self._bytes:
                    self.rest = chunk
                    return False
            size = len(chunk) if relay.complete else min(self._bytes, len(chunk))
            piece, chunk = chunk[:size], chunk[size:]
            self._bytes -= size
            if not take(piece):
                self.rest = chunk
                return False
        return True

    async def more(self, relay: Relay) -> bool:
        """Sees to it that `rest` can go on, if need be by raising the hold; False where the stream has to end."""
        self._look(relay)
        if self._bytes:
            return True
        try:
            await self._raise(min(self.tokens + STEP_TOKENS, self._most))
            self._refused = False
        except Refused as no:
            self.why = str(no)
            await self._last(no.room_nanos)
        except StoreAway as away:
            self.why, self._refused = str(away), True
        self._look(relay)
        return self._bytes > 0

    def _look(self, relay: Relay) -> None:
        self._used = -(-len(relay.produced().encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
        left = self.tokens - self._used
        if self.tokens >= self._most:  # held in full: the backend ends it
            left = self._most
        elif left < (_LEAST_TOKENS if self._refused else _ASK_BELOW):
            left = 0
        self._bytes = left * _BYTES_PER_TOKEN

    async def _last(self, room_nanos: int) -> None:
        tokens = self._affordable(self.hold.amount_nanos + room_nanos)
        if tokens is not None and tokens > self.tokens:
            with suppress(Refused, StoreAway):  # another call was quicker
                await self._raise(min(tokens, self._most))
        self._refused = True

    async def _raise(self, tokens: int) -> None:
        self.hold = await self._budgets.extend(self.hold, self._nanos(tokens), LIVE_US)
        self.tokens = tokens


async def renew(budgets: Budgets, hold: Hold | None) -> None:
    """Keeps the money of a call that is still under way, and its place in limits of calls at once."""
    if hold is None or not (hold.slots or any(gate.kind == "concurrent" for gate in hold.gates)):
        return
    try:
        await budgets.extend(hold, hold.amount_nanos, LIVE_US)
    except (Refused, StoreAway, AlreadySettled):  # it is settled at its cost all the same
        return
