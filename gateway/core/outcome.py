"""How an attempt went: what was seen going by, and how it ended."""
from __future__ import annotations

from typing import Literal

import msgspec

from gateway.core.events import FinishReason
from gateway.core.usage import TokenUsage

Status = Literal[
    "ok",
    "unpriced",          # answered in full, but no price row covers it: the cost is unknown, not zero
    "failed",            # refused, unreachable, or an error status: nothing was produced
    "sent_unanswered",   # sent, no headers in time: the provider may have billed it
    "cut",               # the connection broke in the middle of the answer
    "unterminated",      # it ended without a finish reason
    "stalled",           # silence longer than the policy allows
    "malformed",         # the backend sent something that is not its own dialect
    "client_gone",       # the client hung up; the backend was told to stop
    "lost",              # hedged: another lane answered first, and the backend was told to stop
    "orphaned",          # in flight when the process died; booked at the next start
]
TokensFrom = Literal["provider", "estimate", "mixed", "none"]


class Diagnosis(msgspec.Struct, frozen=True):
    """Why a provider's cache missed, in its own words, and about how many tokens."""

    reason: str
    tokens: int | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway read of an answer as it went by; None is "not said"."""

    usage: TokenUsage | None = None
    served_model: str | None = None
    served_tier: str | None = None
    finish_reason: FinishReason | None = None
    response_id: str | None = None
    region: str | None = None
    """Where it was served, if the answer says so and the price hangs on it (Anthropic's `inference_geo`)."""
    pending: bool = False
    """The answer is still being made; its usage comes when it is asked for (background responses)."""
    diagnosis: Diagnosis | None = None
    error: str | None = None
    """Text of an error that came inside a 200 answer."""
