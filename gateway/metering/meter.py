"""What an attempt took: the provider's own figures where they came, else an estimate that is marked as one.

Missing is not zero: a counter that nobody reported and that no text shows stays None, and the cost with it.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gateway.core.outcome import Observed, Status, TokensFrom
from gateway.core.usage import TokenUsage
from gateway.metering import estimate

PROVISIONAL = "output_provisional"
"""A dialect's flag: the output count is a placeholder from the start of a stream (Anthropic)."""


class Metered(msgspec.Struct, frozen=True):
    """Tokens of an attempt, where they come from, and the share by which the estimated part may be wrong (0: none is).

    `tokens.flags` says what was estimated: `input_estimated`, `output_estimated`, and `usage_missing` for an answer that
    was whole but came without figures.
    """

    tokens: TokenUsage
    source: TokensFrom
    margin: float = 0.0


async def weigh(
    observed: Observed, *, status: Status, sent: bool, prompt_tokens: int, produced: Callable[[], str] | None, model: str,
) -> Metered:
    """Folds what was seen of an attempt into its tokens.

    `prompt_tokens` is the estimate made before sending, `produced` gives the text that came (None: it was not kept).
    """
    usage = observed.usage
    if (metered := told(usage)) is not None:
        return metered
    if not sent or status == "failed":
        return Metered(usage or TokenUsage(), "none")
    counted = estimate.Count(0, 0.0)
    output = None
    if produced is not None and status != "sent_unanswered":
        counted = await asyncio.to_thread(_count, produced, observed.served_model or model)
        output = counted.tokens
    return _fill(usage or TokenUsage(), prompt_tokens, output, counted.margin, whole=status == "ok")


def told(usage: TokenUsage | None) -> Metered | None:
    """The provider's own figures where they are whole; None where something is left to estimate."""
    if usage is None or usage.uncached is None or usage.output is None or PROVISIONAL in usage.flags:
        return None
    return Metered(usage, "provider")


def _count(produced: Callable[[], str], model: str) -> estimate.Count:
    return estimate.count(produced(), model)


def _fill(usage: TokenUsage, prompt_tokens: int, output: int | None, margin: float, *, whole: bool) -> Metered:
    """The usage with what it lacks put in from estimates."""
    flags = [flag for flag in usage.flags if flag != PROVISIONAL]
    if whole and not usage.known:
        flags.append("usage_missing")
    uncached = usage.uncached
    if uncached is None:
        uncached = prompt_tokens
        flags.append("input_estimated")
    if usage.output is None or PROVISIONAL in usage.flags:
        flags.append("output_estimated" if output is not None else "output_unknown")
    else:
        output = usage.output
    source: TokensFrom = "mixed" if usage.known else "estimate"
    return Metered(replace(usage, uncached=uncached, output=output, flags=tuple(flags)), source, margin)
