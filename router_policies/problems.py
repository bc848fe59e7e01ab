"""What is wrong with a file and where: the one shape of error that people see for YAML files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake. Line and column count from 1; `message` never has a value of the file in it, only names and types."""

    file: str
    line: int
    column: int
    path: str  # as in "classes.interactive.epsilon"; empty for the file as a whole
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {where}{self.message}{hint}"


class BadFile(Exception):
    """A file that cannot be used; it lists all that was found wrong."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one was probably meant to be."""
    words = list(known)
    folded = {w.lower().replace("-", "_"): w for w in words}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint: the nearest known word, else all of them if they are few, else nothing."""
    words = sorted(known)
    close = nearest(word, words)
    if close is not None:
        return f"did you mean `{close}`?"
    return f"known: {', '.join(words)}" if 0 < len(words) <= 20 else ""


_WORD = re.compile(r"[A-Za-z_/ ]{1,32}")


def shown(value: str) -> str:
    """A value from a file, where it is of letters only: anything else may be a secret in the wrong place."""
    return f"`{value}`" if _WORD.fullmatch(value) else "text that is none"


def printable(name: str, most: int = 64) -> str:
    """A name from a file, safe to print: cut short, and without control or direction marks."""
    text = "".join(c if c.isprintable() else "?" for c in name[:most])
    return text + "..." if len(name) > most else text
