"""A request body as a provider renders it: blocks in order, each with the tokens and the digest of everything up to it.

Marks are no part of the text: a block with one and the same block without have the same digest, and so have a string and a
list with one text part. A token is four bytes of a block's compact JSON; sums are rounded once, so lengths only add up.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson

BYTES_PER_TOKEN = 4
Json = Mapping[str, Any]


class Refused(Exception):
    """What the provider answers with status 400."""


@dataclass(frozen=True, slots=True)
class Block:
    """One place where a prefix can end. `mark`: lifetime asked for here (None: no mark)."""

    digest: bytes
    tokens: int
    """Of the whole prompt up to and including this block."""
    mark: str | None
    position: int
    """Counts from 1; a run of tool calls, or of their results, is one position."""
    layer: str
    markable: bool = True
    """Whether a mark may stand here; without one, a prefix cannot end here but at the prompt's end."""


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: tuple[Block, ...]
    text: bytes = b""
    """All of it, for caches that do not care about blocks; empty where only the blocks are known."""

    @property
    def tokens(self) -> int:
        return self.blocks[-1].tokens if self.blocks else 0

    @property
    def marked(self) -> list[int]:
        return [index for index, block in enumerate(self.blocks) if block.mark is not None]


@dataclass(frozen=True, slots=True)
class _Piece:
    layer: str
    text: bytes
    mark: str | None = None
    run: str = ""
    """Neighbours with the same non-empty run share a position."""
    markable: bool = True


def anthropic(body: Json) -> Prompt:
    """Tools, system, messages; what invalidates only a part stands in the root of that part. Raises `Refused`."""
    roots = {
        "tools": [body.get("model"), _in(body, "output_config", "format")],
        "system": [body.get("speed"), any(str(t.get("type", "")).startswith("web_search") for t in body.get("tools") or ())],
        "messages": [body.get("tool_choice"), body.get("thinking"), _in(body, "output_config", "effort") or "high"],
    }
    return _prompt(list(_anthropic_pieces(body)), roots)


def openai(body: Json) -> Prompt:
    """Tools, then messages; `tool_choice` does not count. Raises `Refused`."""
    settings = ("model", "parallel_tool_calls", "response_format", "reasoning_effort", "verbosity")
    roots = {"tools": [body.get(name) for name in settings]}
    return _prompt(list(_openai_pieces(body)), roots)


def _anthropic_pieces(body: Json) -> Iterator[_Piece]:
    for tool in body.get("tools") or ():
        yield _piece("tools", "", tool)
    for part in _parts(body.get("system")):
        yield _piece("system", "", part)
    for message in body.get("messages") or ():
        for part in _parts(message.get("content")):
            kind = part.get("type", "")
            yield _piece("messages", message.get("role", ""), part, kind if kind in ("tool_use", "tool_result") else "")


def _openai_pieces(body: Json) -> Iterator[_Piece]:
    for tool in body.get("tools") or ():
        yield replace(_piece("tools", "", tool), markable=False)
    for message in body.get("messages") or ():
        rest = {name: value for name, value in message.items() if name != "content"}
        parts = _parts(message.get("content"))
        for part in parts:
            yield _piece("messages", message.get("role", ""), part)
        if len(rest) > 1 or not parts:
            yield _Piece("messages", orjson.dumps(rest), markable=False)


def _piece(layer: str, role: str, part: Json, run: str = "") -> _Piece:
    mark: str | None = None
    for name in ("cache_control", "prompt_cache_breakpoint"):
        asked = part.get(name)
        if asked is not None:
            mark = asked.get("ttl") or "default"
            part = {key: value for key, value in part.items() if key != name}
            if part.get("type") == "text" and not part.get("text"):
                raise Refused("cache_control cannot be set for empty text blocks")
    return _Piece(layer, role.encode() + b"\0" + orjson.dumps(part), mark, run, part.get("type") not in _UNMARKABLE)


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def _prompt(pieces: Sequence[_Piece], roots: Mapping[str, Sequence[Any]]) -> Prompt:
    running, size, position, run, layer = blake2b(digest_size=16), 0, 0, "", ""
    blocks, texts = [], [b"".join(map(orjson.dumps, roots.values()))]
    for piece in pieces:
        if piece.layer != layer:
            for name in roots:  # roots of the layers on the way, in order
                if _ORDER[layer] < _ORDER[name] <= _ORDER[piece.layer]:
                    running.update(orjson.dumps(roots[name]))
            layer = piece.layer
        running.update(len(piece.text).to_bytes(4) + piece.text)
        texts.append(piece.text)
        size += len(piece.text)
        position += 0 if piece.run and piece.run == run else 1
        run = piece.run
        blocks.append(Block(running.digest(), size // BYTES_PER_TOKEN, piece.mark, position, layer, piece.markable))
    return Prompt(tuple(blocks), b"".join(texts))


_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})
_ORDER = {"": 0, "tools": 1, "system": 2, "messages": 3}


def _in(body: Json, name: str, key: str) -> Any:
    inner = body.get(name)
    return inner.get(key) if isinstance(inner, Mapping) else None
