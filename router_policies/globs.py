"""Shell-like patterns for names: `*` is any text, `?` any one character, nothing else is special.

Matching is linear in the text times the pattern: no regular expression is ever built from a policy file. What looks like
one is refused at load, since a pattern that silently never matches is worse than an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_PATTERN = 200
_NOT_OURS = frozenset("[]{}^$\\|")


def complaint(pattern: str) -> str | None:
    """Why this text is no pattern of ours, or None."""
    if not pattern:
        return "is an empty pattern, which matches nothing"
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    odd = sorted(_NOT_OURS.intersection(pattern))
    if odd:
        return f"has `{odd[0]}`, but only * (any text) and ? (one character) are special in patterns"
    return None


@dataclass(frozen=True, slots=True)
class Glob:
    """One compiled pattern."""

    pattern: str

    def matches(self, text: str) -> bool:
        pattern = self.pattern
        if pattern == "*":
            return True
        if "*" not in pattern and "?" not in pattern:
            return pattern == text
        return _walk(pattern, text)

    def __str__(self) -> str:
        return self.pattern


def _walk(pattern: str, text: str) -> bool:
    """Greedy match that goes back to the last star only, so the work is at most pattern x text."""
    p = t = mark = 0
    star = -1
    while t < len(text):
        if p < len(pattern) and pattern[p] == "*":
            star, mark = p, t
            p += 1
        elif p < len(pattern) and pattern[p] in ("?", text[t]):
            p, t = p + 1, t + 1
        elif star >= 0:
            mark += 1
            p, t = star + 1, mark
        else:
            return False
    return pattern[p:].strip("*") == ""


def globs(patterns: Iterable[str]) -> tuple[Glob, ...]:
    return tuple(Glob(pattern) for pattern in patterns)


def first_match(patterns: Iterable[Glob], text: str) -> Glob | None:
    return next((glob for glob in patterns if glob.matches(text)), None)
