"""Streams that name no output limit are paid for in steps, so that one of them does not reserve a model's whole maximum.

A hold covers so many tokens; before they are used up it is raised by a step, and where no money is left the stream is cut. How
much has come is reckoned on the safe side, a token for three bytes of text, and looked at only when it may matter: text is
part of the bytes that came, so it cannot run out before those bytes have. What a stream can be over is the chunk that crosses.
"""
from __future__ import annotations

from collections.abc import Callable

from gateway.budgets import AlreadySettled, Budgets, Hold, Refused, StoreAway

STEP_TOKENS = 4_096
LIVE_US = 120 * 1_000_000
"""How long the hold of a stream stands without being renewed."""
RENEW_S = 60
_BYTES_PER_TOKEN = 3
_ASK_BELOW = STEP_TOKENS // 4


class Stretch:
    """What one stream may generate. `nanos` is the hold that so many output tokens need, `affordable` the tokens that so large
    a hold pays for, `most_tokens` the model's maximum."""

    def __init__(
        self, budgets: Budgets, hold: Hold, tokens: int, most_tokens: int, nanos: Callable[[int], int],
        affordable: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self.hold, self.tokens = hold, tokens
        self._budgets, self._most, self._nanos, self._affordable = budgets, most_tokens, nanos, affordable
        self._came = 0
        self._look_at = 0
        self._used = 0
        self._refused = False
        self.why = ""
        """What the budget said, once it has said no."""

    def covers(self, size: int, produced: Callable[[], str]) -> bool:
        """After a chunk of that many bytes: False where the hold has to be raised before more is read."""
        self._came += size
        if self._came < self._look_at:
            return True
        self._used = -(-len(produced().encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
        left = self.tokens - self._used - (0 if self._refused else _ASK_BELOW)
        if self.tokens >= self._most:  # held in full: the backend ends it
            left = self._most
        self._look_at = self._came + left * _BYTES_PER_TOKEN
        return left > 0

    async def more(self) -> bool:
        """Raises the hold by a step, or by what is there; False where the stream has to end."""
        try:
            await self._raise(min(self.tokens + STEP_TOKENS, self._most))
        except Refused as no:
            self.why = str(no)
            await self._last(no.room_nanos)
        except StoreAway as away:
            self.why = str(away)
            self._refused = True
        self._look_at = 0
        return self._used < self.tokens

    async def _last(self, room_nanos: int) -> None:
        self._refused = True
        tokens = self._affordable(self.hold.amount_nanos + room_nanos)
        if tokens is not None and tokens > self.tokens:
            try:
                await self._raise(min(tokens, self._most))
            except (Refused, StoreAway):  # another call was quicker
                return

    async def _raise(self, tokens: int) -> None:
        self.hold = await self._budgets.extend(self.hold, self._nanos(tokens), LIVE_US)
        self.tokens = tokens
        self._refused = False


async def renew(budgets: Budgets, hold: Hold | None) -> None:
    """Keeps the money of a call that is still under way, and its place in limits of calls at once."""
    if hold is None or not (hold.slots or any(gate.kind == "concurrent" for gate in hold.gates)):
        return
    try:
        await budgets.extend(hold, hold.amount_nanos, LIVE_US)
    except (Refused, StoreAway, AlreadySettled):  # it is settled at its cost all the same
        return
