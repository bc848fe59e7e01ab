"""The prefix chain of a request: one digest per part, each including all parts before it.

Parts stand in the order in which the provider renders them (tools, system, messages), so two requests whose chains
agree up to part k share a cacheable prefix up to the end of part k. The isolation domain and the model are the chain's
root: chains of two teams never agree, whatever they send.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Chain:
    """`digests[k]` names the prompt up to and including part k, `ends[k]` its length in bytes."""

    digests: tuple[bytes, ...]
    ends: tuple[int, ...]

    @property
    def session(self) -> str:
        """Names the conversation: everything up to the first user message is the same in all of its turns."""
        return self.digests[min(1, len(self.digests) - 1)].hex() if self.digests else ""


def chain(domain: str, model: str, body: bytes, parts: Sequence[tuple[int, int]]) -> Chain:
    """`parts` are byte ranges of the body in rendered order. O(bytes); SHA-256, since processors have it in hardware."""
    running = sha256(f"{domain}\0{model}\0".encode())
    view = memoryview(body)
    digests, ends, total = [], [], 0
    for start, end in parts:
        running.update(b"\0")
        running.update(view[start:end])
        total += end - start
        digests.append(running.digest()[:16])
        ends.append(total)
    return Chain(tuple(digests), tuple(ends))
