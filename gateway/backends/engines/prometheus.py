"""Prometheus text -> the few series that are wanted. Bounded, and nothing of the text is believed to be a name or a path."""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MOST_BYTES = 8 << 20
_LINE = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)")
_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """Values by name, `_total` cut off; each with its labels."""

    values: Mapping[str, list[tuple[dict[str, str], float]]]

    def total(self, *names: str, **labels: str) -> float | None:
        """Sum over all series of the first name that is there and whose labels fit; None where there is none."""
        found = self._found(names, labels)
        return sum(found) if found else None

    def mean(self, *names: str) -> float | None:
        """Mean over the ranks of the first name that is there."""
        found = self._found(names, {})
        return sum(found) / len(found) if found else None

    def count(self, *names: str) -> int | None:
        """`total` as a whole number."""
        found = self.total(*names)
        return None if found is None else round(found)

    def _found(self, names: Iterable[str], labels: Mapping[str, str]) -> list[float]:
        for name in names:
            if found := [value for has, value in self.values.get(name, ()) if labels.items() <= has.items()]:
                return found
        return []


def parse(text: bytes | None, wanted: Iterable[str]) -> Series:
    """The wanted names, given without `_total`; lines that are malformed or not finite are passed over."""
    names = {name.encode(): name for name in wanted}
    values: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in (text or b"")[:_MOST_BYTES].splitlines():
        found = _LINE.match(line)
        if found is None or (name := names.get(found[1].removesuffix(b"_total"))) is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if value - value == 0:  # neither NaN nor infinite
            labels = {key.decode(): text.decode(errors="replace") for key, text in _LABEL.findall(found[2] or b"")}
            values.setdefault(name, []).append((labels, value))
    return Series(values)
