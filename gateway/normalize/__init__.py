"""Makes the fixed part of a prompt the same bytes in every call, by passes that each say how safe they are.

A pass is a plain callable in `PASSES`; its position is the design decision. Levels, each including those before:

    off          nothing is touched
    lossless     the model sees the same tokens: only the JSON form around them changes
    equivalent   the order of a set that has no order (tools, keys of a schema) may change
    relocating   volatile text may move behind the fixed part

A pass that cannot read a request leaves it as it came and says so in its receipt; normalizing never makes an error.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from gateway.normalize.first_form import FirstForms, first_form

LEVELS = ("off", "lossless", "equivalent", "relocating")


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of one body field, with its receipt."""

    field: str
    value: bytes
    receipt: Mapping[str, str]


Pass = Callable[[FirstForms, str, str, bytes, Mapping[str, tuple[int, int]]], tuple[str, bytes] | None]
"""(memory, level, isolation domain, body, spans of the top-level fields) -> (field, new value), or None for no change."""

PASSES: tuple[Pass, ...] = (first_form,)


def normalize(
    memory: FirstForms,
    level: str,
    domain: str,
    body: bytes,
    spans: Mapping[str, tuple[int, int]],
    switches: Mapping[str, bool] = MappingProxyType({}),
) -> list[Change]:
    """The edits that the passes of this level ask for; `switches` turns single passes off. `body` is not changed here."""
    if level == "off":
        return []
    changes = []
    for each in PASSES:
        if not switches.get(each.__name__, True):
            continue
        edit = each(memory, level, domain, body, spans)
        if edit is not None:
            field, value = edit
            changes.append(Change(field, value, _receipt(each.__name__, field, body[slice(*spans[field])], value)))
    return changes


def _receipt(name: str, place: str, before: bytes, after: bytes) -> dict[str, str]:
    return {"pass": name, "place": place, "before": _hash(before), "after": _hash(after)}


def _hash(value: bytes) -> str:
    return blake2b(value, digest_size=8).hexdigest()
