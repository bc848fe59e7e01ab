"""What the gateway does to save money, and the conversations that go without it so that the saving can be measured.

Whole conversations are drawn, by what all their turns share: the draw needs no memory and holds on every replica.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

_WHOLE = 2**64
ARM = "arm"
"""The `pass` of the receipt that says which conversation an entry belongs to and which levers it goes without."""


def held(lever: str, domain: str, conversation: bytes, share: float) -> bool:
    """Whether a conversation goes without a lever; levers are drawn independently of each other."""
    if share <= 0.0 or not conversation:
        return False
    named = _root(lever, domain).copy()
    named.update(conversation)
    return int.from_bytes(named.digest()) < share * _WHOLE


@lru_cache(4_096)
def _root(lever: str, domain: str) -> Any:
    return blake2b(domain.encode("utf-8", "replace") + b"\0", digest_size=8, person=lever.encode()[:16])


def arms(conversation: bytes, levers: Mapping[str, bool]) -> dict[str, Any]:
    """A receipt. `levers`: name -> whether it is held out; levers that are not under trial are left out."""
    return {"pass": ARM, "place": conversation.hex(), "held": dict(levers)}
