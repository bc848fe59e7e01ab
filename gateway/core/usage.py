"""Tokens of one attempt in classes that never overlap, so that a price is a plain sum of products.

Providers count in two ways. OpenAI-shaped bodies put cached and written tokens *inside* the prompt total, Anthropic-shaped
ones put them *beside* it. Each dialect's `usage()` turns its own shape into this one and nothing else in the program
knows the difference. `None` means "not reported", 0 means "reported as none": they are different facts and stay apart.
"""
from __future__ import annotations

from collections.abc import Mapping

import msgspec

WRITE_TTLS = ("5m", "1h", "30m", "12h", "unknown")
"""Lifetimes of cache writes that some provider prices apart; `unknown` is priced as the provider's short one."""


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one attempt; `input_total` is the sum of the first three classes."""

    uncached: int | None = None
    """Prompt tokens that the backend computed."""
    cache_read: int | None = None
    """Prompt tokens that it read from its prefix cache."""
    cache_write: Mapping[str, int] = {}
    """Prompt tokens that it charged for storing there, by lifetime (keys: `WRITE_TTLS`)."""
    output: int | None = None
    """Generated tokens, reasoning included."""
    reasoning: int | None = None
    """The part of `output` that was reasoning."""
    other: Mapping[str, int] = {}
    """Whatever else is metered: `audio_in`, `audio_out`, `image_out`, `tool_prompt`, `web_search_requests` and so on.

    The names say which class they are part of; see `gateway/metering/prices.py` for those that have a price of their own.
    """
    flags: tuple[str, ...] = ()
    """What was wrong with the figures as they were reported, e.g. `cached_exceeds_prompt`; empty when all adds up."""

    @property
    def written(self) -> int:
        return sum(self.cache_write.values()) if self.cache_write else 0

    @property
    def input_total(self) -> int:
        told = (self.uncached or 0) + (self.cache_read or 0)
        return told + sum(self.cache_write.values()) if self.cache_write else told

    @property
    def known(self) -> bool:
        """Whether anything was reported at all."""
        return self.uncached is not None or self.output is not None
