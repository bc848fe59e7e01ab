"""Reading counters that came from outside: only whole numbers that can be true count, the rest is flagged."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 10**9
"""More than any counter of one answer that can be true: by far the longest prompts have some ten million tokens."""

_LONGEST_NAME = 256


class Counters:
    """Takes counters out of a usage object and collects the flags of those that cannot be true."""

    __slots__ = ("flags",)

    def __init__(self) -> None:
        self.flags: list[str] = []

    def take(self, raw: Mapping[str, Any], name: str) -> int | None:
        """The counter, or None where it is absent, null, or no whole number from 0 up (flagged `invalid_...`)."""
        found = raw.get(name)
        if found is None:
            return None
        if type(found) is float and found.is_integer():
            found = int(found)
        if type(found) is not int or not 0 <= found <= MOST:
            self.flags.append(f"invalid_{name}")
            return None
        return found


def name(told: object) -> str | None:
    """A name as a backend tells it, fit for the books: short, and nothing in it but what prints."""
    if not isinstance(told, str):
        return None
    fit = told if told.isprintable() else "".join(filter(str.isprintable, told))
    return fit[:_LONGEST_NAME] or None


def part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object; anything else counts as empty."""
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def merge(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Running totals: the last value that is not null wins, member by member; nothing is added."""
    return {**(old or {}), **{key: value for key, value in new.items() if value is not None}}
