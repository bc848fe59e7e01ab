"""A text that must not be seen: it prints as stars, everywhere but where it is meant to go."""
from __future__ import annotations


class Secret:
    """Compare and print safely; `.reveal()` is the one way to the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")
