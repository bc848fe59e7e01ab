"""OpenAI from 5.6 on: written at breakpoints, one of them implicit; no other prefix is ever found.

A request writes at most four prefixes. In implicit mode the end of the prompt is one of them, and three marks are left; with
more marks the last ones are written. In explicit mode only the marks are, and without a mark nothing is read or written. A
read finds the longest stored prefix that ends at one of the prompt's last 50 blocks or at a mark. Nothing is rounded. An
entry lives for its lifetime after the last write or hit.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.providers.marked import NEVER_READY, Entry, Used
from benchmarks.providers.prompt import Prompt, Refused

LIFETIMES_S = {"30m": 1800.0, "12h": 43_200.0}
_WRITES, _CONSIDERED, _MINIMUM = 4, 50, 1024
_OPTIONS = frozenset({"mode", "ttl", "prewarm", "comparison_response_id"})


class BreakpointCache:
    def __init__(self, *, responses: bool = False) -> None:
        self._responses = responses
        self._entries: dict[tuple[str, bytes], Entry] = {}

    def serve(self, domain: str, prompt: Prompt, at_s: float, body: Mapping[str, Any]) -> Used:
        """Counts one prompt. Raises `Refused` for options that the endpoint does not have."""
        mode, ttl = self._options(body)
        blocks, marks = prompt.blocks, prompt.marked
        for index in marks:
            self._lifetime(blocks[index].mark or "")
        if mode == "explicit" and not marks:
            return Used(uncached=prompt.tokens)
        ends = ([len(blocks) - 1] if mode == "implicit" and blocks and len(blocks) - 1 not in marks else [])
        places = sorted([*marks, *ends])[-_WRITES:]
        hit = self._read(domain, prompt, at_s, marks)
        used = Used(read=blocks[hit].tokens if hit >= 0 else 0)
        done = used.read
        for index in places:
            tokens = blocks[index].tokens
            if tokens < _MINIMUM or tokens <= done:
                continue
            life = self._lifetime(blocks[index].mark or ttl) if blocks[index].mark not in (None, "default") else ttl
            used.written[life] = used.written.get(life, 0) + tokens - done
            done = tokens
            entry = Entry(life, at_s + LIFETIMES_S[life], NEVER_READY)
            self._entries[domain, blocks[index].digest] = entry
            used.entries.append(entry)
        used.uncached = prompt.tokens - done
        return used

    def holds(self, domain: str, digest: bytes, at_s: float) -> bool:
        """Whether the prefix of that name can be read now."""
        entry = self._entries.get((domain, digest))
        return entry is not None and entry.ready_s <= at_s < entry.until_s

    def _options(self, body: Mapping[str, Any]) -> tuple[str, str]:
        options = body.get("prompt_cache_options") or {}
        if unknown := set(options) - _OPTIONS:
            raise Refused(f"Unknown parameter: 'prompt_cache_options.{sorted(unknown)[0]}'.")
        mode = options.get("mode", "implicit")
        if mode not in ("implicit", "explicit"):
            raise Refused("Invalid value for 'prompt_cache_options.mode'.")
        if not self._responses and {"prewarm", "comparison_response_id"} & set(options):
            raise Refused("Unsupported parameter for this endpoint: 'prompt_cache_options.prewarm'.")
        return mode, self._lifetime(options.get("ttl", "30m"))

    def _lifetime(self, ttl: str) -> str:
        ttl = "30m" if ttl == "default" else ttl
        if ttl not in LIFETIMES_S or (ttl == "12h" and not self._responses):
            raise Refused(f"Invalid value {ttl!r} for the lifetime of a cache entry.")
        return ttl

    def _read(self, domain: str, prompt: Prompt, at_s: float, marks: list[int]) -> int:
        blocks = prompt.blocks
        recent = range(max(len(blocks) - _CONSIDERED, 0), len(blocks))
        places: set[int] = {*recent, *marks}
        for index in sorted(places, reverse=True):
            entry = self._entries.get((domain, blocks[index].digest))
            if entry is not None and entry.ready_s <= at_s < entry.until_s:
                entry.until_s = at_s + LIFETIMES_S[entry.ttl]
                return index
        return -1
