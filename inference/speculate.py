"""Drafts for the fast lane: what followed the last occurrence of the newest words, and how much of it to try.

The proposer only guesses; the answer never depends on it, because every guess is checked by the model. The index is
kept up as tokens come, so that a proposal costs the same at 8,000 tokens as at 80.
"""

from collections.abc import Sequence
from typing import Protocol

_LONGEST, _SHORTEST = 4, 2


class Proposer(Protocol):
    """Guesses the next tokens of a growing list."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]: ...

    def close(self) -> None:
        """The request ended or lost its blocks."""


class NgramProposer:
    """Looks the last 4 (then 3, then 2) tokens up in all that came before, and offers what followed there."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many tokens, or none. `tokens` must extend those of the call before."""
        if most < 1:
            return []
        self._index(tokens)
        for size in range(_LONGEST, _SHORTEST - 1, -1):
            end = self._ends.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if end is not None:
                return list(tokens[end : end + most])
        return []

    def close(self) -> None:
        """The index is kept: it holds words, no blocks."""

    def _index(self, tokens: Sequence[int]) -> None:
        """Note every n-gram that ends before the last token: the newest one must not find itself."""
        for end in range(max(self._indexed, _SHORTEST), len(tokens)):
            for size in range(_SHORTEST, min(_LONGEST, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)


class AdaptiveLength:
    """How many tokens to draft: more after full acceptance, fewer after misses, none for a while after a run of them."""

    def __init__(self, start: int = 3, most: int = 7, patience: int = 6, pause: int = 16) -> None:
        self._start, self._most, self._patience, self._pause = start, most, patience, pause
        self._length = start
        self._misses = self._resting = 0

    @property
    def length(self) -> int:
        """Drafts to make now."""
        return 0 if self._resting else self._length

    def record(self, drafted: int, accepted: int) -> None:
        """Learn from one step (also one without a draft, which a rest is counted in)."""
        if self._resting:
            self._resting -= 1
        elif drafted and accepted == drafted:
            self._length, self._misses = min(self._most, self._length + 2), 0
        elif drafted and accepted:
            self._length, self._misses = max(self._start, accepted + 1), 0
        elif drafted:
            self._length, self._misses = self._start, self._misses + 1
            if self._misses >= self._patience:
                self._misses, self._resting = 0, self._pause
