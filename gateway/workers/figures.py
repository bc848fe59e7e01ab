"""The metrics of several processes as those of one."""
from __future__ import annotations

from collections.abc import Sequence

_LEAST = ("_created",)
_MOST = ("tollway_policy_problems", "tollway_price_problems", "tollway_settings_changed")


def merged(texts: Sequence[bytes]) -> bytes:
    """The figures of several processes as one: sums, but the earliest start and the worst of what all see alike."""
    lines: dict[str, str] = {}
    for text in texts:
        for line in text.decode().splitlines():
            series, _, value = line.rpartition(" ")
            if line.startswith("#") or series not in lines:
                lines[line if line.startswith("#") else series] = "" if line.startswith("#") else value
                continue
            name = series.partition("{")[0]
            known, new = float(lines[series]), float(value)
            fold = min if name.endswith(_LEAST) else max if name.startswith(_MOST) else float.__add__
            lines[series] = repr(fold(known, new))
    return _by_family(lines)


def _by_family(lines: dict[str, str]) -> bytes:
    """Series below their HELP and TYPE lines again: one that only a later process had came in after the others."""
    families: dict[str, list[str]] = {}
    for series, value in lines.items():
        if series.startswith("#"):
            name = series.split(" ", 3)[2]
            families.setdefault(name, []).append(series)
        else:
            name = _family(series.partition("{")[0], families)
            families.setdefault(name, []).append(f"{series} {value}")
    return "".join(line + "\n" for family in families.values() for line in family).encode()


def _family(name: str, known: dict[str, list[str]]) -> str:
    if name in known:
        return name
    return next((name.removesuffix(end) for end in ("_bucket", "_count", "_sum") if name.removesuffix(end) in known), name)
