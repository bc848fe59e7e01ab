"""Modules that are dear to read and not always needed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


class _Later:
    """Stands for a module. Where several threads are the first to use it, one reads it and the others wait."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = self.__dict__[attribute] = getattr(import_module(self._name), attribute)
        return found


@cache
def lazily(name: str) -> Any:
    """The module of that name, read when something of it is first used. Raises ModuleNotFoundError at once if there is none."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _Later(name)
