"""Gemini's explicit caches: objects with a lifetime that are made by a call of their own, named by requests, and rented by
the hour.

Making one costs the input price of its tokens, reading them a tenth, storing them so much per token and hour until the end of
their lifetime, which reading does not move.
"""
from __future__ import annotations

from dataclasses import dataclass

from benchmarks.providers.prompt import Refused


@dataclass(slots=True)
class CachedObject:
    """One `cachedContents` object; `until_s` is when it is gone."""

    name: str
    model: str
    tokens: int
    made_s: float
    until_s: float

    def rented_token_hours(self, at_s: float) -> float:
        """What storage is billed for, up to now."""
        return self.tokens * (min(self.until_s, max(at_s, self.made_s)) - self.made_s) / 3600


class ObjectStore:
    def __init__(self, minimum: int = 2048, least_life_s: float = 60.0) -> None:
        self._minimum, self._least_life_s = minimum, least_life_s
        self.objects: dict[str, CachedObject] = {}

    def create(self, model: str, tokens: int, life_s: float, at_s: float) -> CachedObject:
        """Raises `Refused`: below the minimum, or too short a life."""
        if tokens < self._minimum:
            raise Refused(f"Cached content is too small. total_token_count={tokens}, min_total_token_count={self._minimum}")
        if life_s < self._least_life_s:
            raise Refused("The ttl of cached content must be at least a minute.")
        name = f"cachedContents/{len(self.objects) + 1}"
        self.objects[name] = CachedObject(name, model, tokens, at_s, at_s + life_s)
        return self.objects[name]

    def extend(self, name: str, life_s: float, at_s: float) -> None:
        self.get(name, self.objects[name].model, at_s).until_s = at_s + life_s

    def delete(self, name: str, at_s: float) -> None:
        self.objects[name].until_s = min(self.objects[name].until_s, at_s)

    def get(self, name: str, model: str, at_s: float) -> CachedObject:
        found = self.objects.get(name)
        if found is None or at_s >= found.until_s:
            raise Refused("CachedContent not found (or permission denied)")
        if found.model != model:
            raise Refused("Model used by GenerateContent request and CachedContent has to be the same.")
        return found

    def rent_token_hours(self, at_s: float) -> float:
        """Of all objects that ever were."""
        return sum(each.rented_token_hours(at_s) for each in self.objects.values())
